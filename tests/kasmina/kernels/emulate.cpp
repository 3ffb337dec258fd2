// The kernels of block.cu on a CPU, one shape per compilation (see emulate.h).
#include "block.cu"

static Block arguments;
static void forward_body() { block_forward(arguments); }
static void backward_body() { block_backward(arguments); }

// Run a whole grid; returns what went wrong, or null.
extern "C" const char *emulate(const Block *given, int backward, int parts, int rows, unsigned seed) {
  using namespace emulated;
  arguments = *given;
  body = backward ? backward_body : forward_body;
  memory.assign(backward ? BACKWARD_BYTES : FORWARD_BYTES, 0);
  stacks.resize((size_t)THREADS * STACK);
  trouble = nullptr;
  std::mt19937 random(seed);
  grid_x = parts;
  for (block_y = 0; block_y < rows && !trouble; block_y++)
    for (block_x = 0; block_x < parts && !trouble; block_x++) run_block(random);
  return trouble;
}
extern "C" int shared_bytes(int backward) { return backward ? BACKWARD_BYTES : FORWARD_BYTES; }
extern "C" int images_per_step() { return IMAGES; }

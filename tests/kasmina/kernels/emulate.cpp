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
  memory_bytes = backward ? BACKWARD_BYTES : FORWARD_BYTES;
  random_state = seed;
  trouble = nullptr;
  grid_x = parts;
  for (block_y = 0; block_y < rows && !trouble; block_y++)
    for (block_x = 0; block_x < parts && !trouble; block_x++) run_block();
  return trouble;
}

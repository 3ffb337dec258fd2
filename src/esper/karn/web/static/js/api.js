// Asks the server: records by fetch, a run that changes by a socket that connects again.

export async function ask(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  if (answer.ok) return answer.json();
  const text = await answer.text();
  let message = text.trim();
  try {
    message = JSON.parse(text).error || message;
  } catch {
    // plain text
  }
  throw new Error(message || `the server answered ${answer.status}`);
}

const FIRST_WAIT = 1000;
const MAX_WAIT = 15000;
const REFUSED = 1008;

// Calls onMessage with every message of a run, and onConnection with "open", "lost" or "refused".
export function follow(id, onMessage, onConnection) {
  let wait = FIRST_WAIT;
  let socket = null;
  let stopped = false;
  const connect = () => {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(`${scheme}//${location.host}/api/runs/${id}/live`);
    let first = true;
    socket.addEventListener("message", (event) => {
      wait = FIRST_WAIT;
      onConnection("open", "");
      onMessage(JSON.parse(event.data), first);
      first = false;
    });
    socket.addEventListener("close", (event) => {
      if (stopped) return;
      if (event.code === REFUSED && event.reason) {
        onConnection("refused", event.reason);
        return;
      }
      onConnection("lost", event.reason);
      setTimeout(connect, wait);
      wait = Math.min(MAX_WAIT, wait * 2);
    });
  };
  connect();
  return () => {
    stopped = true;
    if (socket) socket.close();
  };
}

// `load` one at a time: calls while it is under way make it run once more.
export function oneAtATime(load) {
  let busy = false;
  let again = false;
  return async () => {
    again = true;
    if (busy) return;
    busy = true;
    while (again) {
      again = false;
      await load();
    }
    busy = false;
  };
}

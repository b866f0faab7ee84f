// The way to the daemon: through `memtide web`, or through Cockpit. Both answer the same questions.

/** Why the daemon did not answer. */
export class Failure extends Error {
  /** `stops` tells that asking again is useless. */
  constructor(message, stops = false) { super(message); this.stops = stops; }
}

/** Reads server-sent events from the pieces in which they arrive. */
export class Events {
  #rest = [];
  #name = "";
  #data = "";
  constructor(hear) { this.hear = hear; }
  take(piece) {
    let begin = 0;
    for (let end; (end = piece.indexOf("\n", begin)) >= 0; begin = end + 1) {
      this.#line(this.#rest.join("") + piece.slice(begin, end));
      this.#rest = [];
    }
    this.#rest.push(piece.slice(begin));
  }
  #line(line) {
    if (line.startsWith("event:")) this.#name = line.slice(6).trim();
    else if (line.startsWith("data:")) this.#data = line.slice(5).trim();
    else if (line === "") {
      if (this.#data) this.hear(this.#name, JSON.parse(this.#data));
      this.#name = this.#data = "";
    }
  }
}

const why = text => { try { return JSON.parse(text).error; } catch { return ""; } };

/** `memtide web` takes the token from the page's address; the token leaves the address bar, and stays with this tab. */
class Web {
  #token;
  constructor() {
    const said = location.hash.slice(1);
    if (said) {
      sessionStorage.setItem("token", said);
      history.replaceState(null, "", location.pathname);
    }
    this.#token = said || sessionStorage.getItem("token") || "";
  }
  async #ask(path, options = {}) {
    let answer;
    try {
      answer = await fetch(path, { ...options, cache: "no-store", headers: { Authorization: `Bearer ${this.#token}` } });
    } catch {
      throw new Failure("`memtide web` does not answer: it was ended, or its machine cannot be reached");
    }
    if (answer.ok) return answer;
    const said = why(await answer.text()) || `the answer is ${answer.status}`;
    throw new Failure(said, answer.status === 401 || answer.status === 403);
  }
  async get(path) { return (await this.#ask(path)).json(); }
  async post(path, order) { return (await this.#ask(path, { method: "POST", body: JSON.stringify(order) })).json(); }
  /** Hears events until the daemon ends, or until it is told to stop. */
  listen(path, hear) {
    const stop = new AbortController();
    return { ended: this.#listen(path, hear, stop.signal), stop: () => stop.abort() };
  }
  async #listen(path, hear, signal) {
    const answer = await this.#ask(path, { signal });
    const events = new Events(hear), reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        events.take(value);
      }
    } catch (error) {
      // A daemon that ends breaks off in the middle of the stream.
      if (error instanceof SyntaxError) throw error;
    }
  }
}

/** In Cockpit, the user who has logged in asks the daemon's socket, with the rights of that user. */
class Cockpit {
  #http = window.cockpit.http({ unix: "/run/memtide/memtide.sock" });
  #request(request) {
    return this.#http.request({ headers: { "Content-Type": "application/json" }, body: "", ...request, path: `/${request.path}` });
  }
  #ask(asked) {
    return new Promise((resolve, reject) => asked.then(resolve, (problem, text) => reject(this.#failure(problem, text))));
  }
  #failure(problem, text) {
    const said = why(text);
    if (said) return new Failure(said);
    switch (problem?.problem) {
      case "access-denied":
        return new Failure("this user may not use the daemon’s socket: join the group memtide, and log in again");
      case "not-found":
        return new Failure("no daemon answers at /run/memtide/memtide.sock: start it, and this page goes on by itself");
      default:
        return new Failure(problem?.message || problem?.problem || "the connection to the daemon failed");
    }
  }
  async get(path) { return JSON.parse(await this.#ask(this.#request({ method: "GET", path }))); }
  async post(path, order) {
    return JSON.parse(await this.#ask(this.#request({ method: "POST", path, body: JSON.stringify(order) })));
  }
  listen(path, hear) {
    const events = new Events(hear), asked = this.#request({ method: "GET", path });
    asked.stream(piece => events.take(piece));
    return { ended: this.#ask(asked), stop: () => asked.close?.("cancelled") };
  }
}

/** The way that this page has. */
export const daemon = window.cockpit ? new Cockpit() : new Web();

// Requests to the HTTP interface with the session's cookie. Without a session, the page to sign in opens.

/** The path that a proxy puts before the service's, or "", from this file's place {root}/dashboard/assets/{digest}/. */
export const root = new URL("../../..", import.meta.url).pathname.replace(/\/$/, "");

export class Problem extends Error {
  constructor(status, told, retryAfter) {
    const said = status >= 500 ? [told.title, told.detail] : [told.detail ?? told.title]; // of a failure the title has the cause
    super(said.filter(Boolean).join(". ") || `The service answered ${status}.`);
    Object.assign(this, { status, told, retryAfter });
  }
}

/** Returns the answer of a request. Throws a Problem with the service's text. */
export async function send(path, options = {}) {
  let answer;
  try {
    answer = await fetch(root + path, { ...options, headers: { "X-Perennial-Page": "1", ...options.headers } });
  } catch {
    throw new Problem(0, { detail: "The service does not answer. This page tries again by itself." });
  }
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Problem(answer.status, told, Number(answer.headers.get("Retry-After") ?? 0));
}

/** Returns the JSON at an address. */
export const read = async (path) => (await send(path)).json();

let signedIn = false; // as far as this page knows

/** Returns the JSON at an address; without a session opens the page to sign in, which says if one has ended. */
export async function get(path) {
  try {
    const content = await read(path);
    signedIn = true;
    return content;
  } catch (error) {
    if (error.status !== 401) throw error;
    const next = encodeURIComponent(location.pathname.slice(root.length) + location.search + location.hash);
    location.replace(`${root}/dashboard/sign-in?next=${next}${signedIn ? "&ended=1" : ""}`);
    return new Promise(() => {}); // nothing more happens on this page
  }
}

/** Downloads a file under the name that the service gives it. */
export async function download(path, type, name) {
  save(await (await send(path, { headers: { Accept: type } })).blob(), name);
}

/** Downloads content made by this page as a file. */
export function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Begins a session. The page does not store the key. */
export async function signIn(key) {
  await send("/v1/session", { method: "POST", headers: { Authorization: `Bearer ${key}` } });
}

export async function signOut() {
  await send("/v1/session", { method: "DELETE" });
}

/**
 * Calls `told` with each new model while the page is visible. A browser opens few connections to one service, so a page
 * in the background closes its own; `told(release)` gets the latest once the page is visible again. A page that
 * must stay open when its session ends gives `read` as `ask`: `get` would leave for the sign-in page.
 */
export function follow(publication, told, living, ask = get) {
  let source = null;
  const look = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (source === null) {
      source = new EventSource(`${root}/v1/publications/${publication}/events`);
      source.onopen = () => living(true);
      source.onerror = () => {
        living(false);
        if (source.readyState === EventSource.CLOSED) {
          // refused: the session may have ended
          source = null;
          ask("/v1/session").then(
            () => setTimeout(look, 5000),
            () => setTimeout(look, 5000),
          );
        }
      };
      source.onmessage = (event) => told(JSON.parse(event.data));
    }
  };
  document.addEventListener("visibilitychange", look);
  look();
}

/**
 * Calls `look` at intervals while the page is visible, never twice at a time; reports errors and retries. Returns a
 * function that looks at once, or as soon as the present look is done.
 */
export function regularly(seconds, look, failed) {
  let [asleep, looking, wanted] = [null, false, false];
  const again = async () => {
    wanted = true;
    if (looking || document.hidden) return;
    looking = true;
    clearTimeout(asleep);
    let wait = seconds;
    while (wanted) {
      wanted = false;
      try {
        await look();
        failed(null);
      } catch (error) {
        wait = Math.max(seconds, error.retryAfter ?? 0);
        failed(error);
      }
    }
    looking = false;
    asleep = setTimeout(again, wait * 1000);
  };
  document.addEventListener("visibilitychange", again);
  again();
  return again;
}

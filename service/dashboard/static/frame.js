// The frame of every page: the key in use, and the button to sign out.

import { Problem, get, read, regularly, root, signOut } from "./api.js";
import { $, keepTime, notice, replace } from "./dom.js";

/**
 * Shows the key in use, and its changes: another tab may sign in with another key. Until the service answers there is
 * only "Sign out". A page that must stay open when its session ends gives `read` as `ask`, as to `follow`.
 */
export function frame(ask = get) {
  $("sign-out").addEventListener("click", async () => {
    await signOut();
    location.assign(`${root}/dashboard/sign-in`);
  });
  keepTime();
  const who = async () => {
    const { key, streams } = await ask("/v1/session");
    $("who-name").textContent = key;
    $("who-name").title = streams ? `This key sees only: ${streams.join(", ")}` : "This key sees every stream";
  };
  regularly(10, who, () => ($("who").hidden = false));
}

const meant = new URLSearchParams(location.search).get("stream"); // whose link led to this page of a publication
/** Says that the publication belongs to another stream than the link named. */
export const ofAnother = (stream) =>
  meant !== null &&
  meant !== stream &&
  notice(
    "warn",
    `This is the publication of stream ${stream}`,
    `Stream ${meant} has one of this name too. Of several that a key may see the name means the oldest, on all pages and on the card. A key that sees ${meant} alone opens the other one.`,
  );

/**
 * Returns a function that reads the publication at an address: always the first one found. Another key may sign in with
 * another tab, and for that key the name may mean another publication, or none.
 */
export function publicationAt(address) {
  let stream = null;
  return async () => {
    const seen = await read(address).catch((error) => {
      if (error.status !== 404 || stream === null) throw error;
      return { stream: null };
    });
    stream ??= seen.stream;
    if (seen.stream === stream) return seen;
    throw new Problem(403, {
      detail: `For the key that is signed in now, this name is not the publication of stream ${stream}. Sign in with the key from before, or with one for that stream alone, in another tab of this browser; what you chose stays here.`,
    });
  };
}

/** Shows an error of a request on the page. */
export function failed(error, title = "Not up to date") {
  const kind = error?.status === 404 ? "plain" : "bad";
  replace($("problem"), error && notice(kind, error.status === 404 ? "Not found" : title, error.message));
}

/** Shows an error of the page's main request; if nothing was found, the page shows nothing else. */
export function absent(error) {
  failed(error);
  $("main").classList.toggle("absent", error?.status === 404);
}

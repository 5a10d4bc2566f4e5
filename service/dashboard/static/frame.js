// What every page has around it: who is looking, and the way out.

import { get, signOut } from "./api.js";
import { $, keepTime, notice, replace } from "./dom.js";

const RETRY_MS = 5000;

/** Asks who is signed in until the service answers. Meanwhile the page says what is wrong, and shows "Sign out". */
async function session() {
  for (;;) {
    try {
      return await get("/v1/session");
    } catch {
      $("who").hidden = false;
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }
}

export async function frame() {
  $("sign-out").addEventListener("click", async () => {
    await signOut();
    location.assign("/dashboard/sign-in");
  });
  keepTime();
  const { key, streams } = await session();
  $("who-name").textContent = key;
  $("who-name").title = streams ? `This key sees only: ${streams.join(", ")}` : "This key sees every stream";
  $("who").hidden = false;
}

/** Where a page says what it could not get, or do. */
export function failed(error, title = "Not up to date") {
  const kind = error?.status === 404 ? "plain" : "bad";
  replace($("problem"), error && notice(kind, error.status === 404 ? "Not found" : title, error.message));
}

/** As `failed`, of the one thing that a page is about: where that is not found, the page shows nothing else. */
export function absent(error) {
  failed(error);
  $("main").classList.toggle("absent", error?.status === 404);
}

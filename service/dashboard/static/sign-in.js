import { root, signIn } from "./api.js";
import { prefetch } from "./charts.js";
import { $ } from "./dom.js";

const parameters = new URLSearchParams(location.search);
const next = parameters.get("next") ?? "";
if (parameters.has("ended")) $("sign-in-problem").textContent = "The session has ended, or its key was revoked. Sign in again.";

$("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  const [field, button] = [$("key"), $("sign-in").querySelector("button")];
  button.disabled = true;
  try {
    await signIn(field.value.trim());
    location.replace(root + (/^\/dashboard(\/[a-z0-9/-]*)?(\?(stream|find)=[\w%.-]*)?(#[a-z0-9]*)?$/.test(next) ? next : "/dashboard")); // never to another site
  } catch (error) {
    $("sign-in-problem").textContent =
      error.status === 401 ? "No such key, or it was revoked. Check that all of it was copied." : error.message;
    field.setAttribute("aria-invalid", "true");
    field.select();
  } finally {
    button.disabled = false;
  }
});
$("key").focus();
prefetch();

import { get, regularly } from "./api.js";
import { $, budgetFacts, budgetMeter, count, fact, h, notice, pill, replace } from "./dom.js";
import { failed, frame } from "./frame.js";

const name = location.pathname.split("/").at(-1);
$("name").textContent = name;
document.title = `${name} · Perennial`;

async function look() {
  const stream = await get(`/v1/streams/${name}`);
  replace($("facts"), h("dl", { class: "facts" }, fact("Records", count(stream.records)), budgetFacts(stream)), budgetMeter(stream));
}

frame();
regularly(5, look, failed);

// The official OpenAI client for Node: requests at once, all of which have to end well, however often they are refused.
//
// usage: node tools/openai_client.mjs BASE_URL REQUESTS      prints one line of JSON: {"answered": N, "faults": [...]}
// env:   FOREBAY_KEY   the API key, default a word that is none
// needs: the package `openai` in target/node (tools/ci/40-openai sets it up)

import { createRequire } from "node:module";

const require = createRequire(new URL("../target/node/package.json", import.meta.url));
const { OpenAI } = require("openai");

const [baseURL, requests] = [process.argv[2], Number(process.argv[3])];
const client = new OpenAI({ baseURL, apiKey: process.env.FOREBAY_KEY ?? "unused", maxRetries: 40, timeout: 60_000 });

async function one(number) {
  const ask = {
    model: "tiny",
    max_tokens: 10,
    messages: [{ role: "user", content: `question ${number} ${"word ".repeat(200)}` }],
  };
  const options = { headers: { "x-client": `node-${number}` } };
  if (number % 2 === 0) {
    const answer = await client.chat.completions.create(ask, options);
    return answer.choices[0].message.content;
  }
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true }, options)) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  return text;
}

const ended = await Promise.allSettled(Array.from({ length: requests }, (_, number) => one(number)));
const answered = ended.filter((end) => end.status === "fulfilled" && end.value).length;
const faults = ended.filter((end) => end.status === "rejected").map((end) => String(end.reason));
console.log(JSON.stringify({ answered, faults }));

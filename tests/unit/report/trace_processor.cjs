// Runs SQL on a trace in Perfetto's own trace processor and prints the rows as JSON:
//
//     node trace_processor.cjs FOLDER TRACE SQL
//
// FOLDER holds a build of Perfetto's web UI: trace_processor.wasm and engine_bundle.js, the worker that drives it. The
// worker speaks protobuf (protos/perfetto/trace_processor/trace_processor.proto); what is needed of it is written here.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const [folder, trace, sql] = process.argv.slice(2);
const [APPEND, FINALIZE, QUERY] = [1, 2, 3]; // TraceProcessorRpc.TraceProcessorMethod
const [NULL, VARINT, FLOAT, STRING] = [1, 2, 3, 4]; // QueryResult.CellsBatch.CellType

const varint = (number) => {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push((number % 128) | 128);
  return Buffer.from([...bytes, number]);
};
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const blob = (field, bytes) => Buffer.concat([varint(field * 8 + 2), varint(bytes.length), bytes]);
const request = (seq, method, args) => blob(1, Buffer.concat([number(1, seq), number(2, method), args]));

function readVarint(bytes, at) {
  let [value, shift] = [0n, 0n];
  for (; ; at += 1, shift += 7n) {
    value |= BigInt(bytes[at] & 127) << shift;
    if (bytes[at] < 128) return [BigInt.asIntN(64, value), at + 1];
  }
}
function* fields(bytes) {
  for (let at = 0; at < bytes.length; ) {
    let tag, value, length;
    [tag, at] = readVarint(bytes, at);
    const kind = Number(tag & 7n);
    if (kind === 0) [value, at] = readVarint(bytes, at);
    else {
      if (kind === 2) [length, at] = readVarint(bytes, at);
      else length = kind === 1 ? 8 : 4;
      value = bytes.subarray(at, at + Number(length));
      at += Number(length);
    }
    yield [Number(tag >> 3n), value];
  }
}
function* varints(bytes) {
  for (let at = 0, value; at < bytes.length; yield value) [value, at] = readVarint(bytes, at);
}

const [names, cells] = [[], []];
function readBatch(batch) {
  const found = { kinds: [], numbers: [], floats: [], texts: [] };
  for (const [field, value] of fields(batch)) {
    if (field === 1) found.kinds.push(...varints(value));
    if (field === 2) found.numbers.push(...varints(value));
    if (field === 3) for (let at = 0; at < value.length; at += 8) found.floats.push(value.readDoubleLE(at));
    if (field === 5) found.texts.push(...value.toString().split("\0"));
  }
  const next = { [NULL]: () => null, [STRING]: () => found.texts.shift() };
  Object.assign(next, { [VARINT]: () => Number(found.numbers.shift()), [FLOAT]: () => found.floats.shift() });
  for (const kind of found.kinds) cells.push(next[Number(kind)]());
}
function onReply(reply) {
  for (const [, message] of fields(Buffer.from(reply)))
    for (const [field, value] of fields(message)) {
      if (field === 5) throw new Error(value.toString());
      if (field === 201) for (const [part, text] of fields(value)) if (part === 2) throw new Error(text.toString());
      if (field === 203)
        for (const [part, content] of fields(value)) {
          if (part === 1) names.push(content.toString());
          if (part === 2) throw new Error(content.toString());
          if (part === 3) readBatch(content);
        }
    }
}

const worker = { location: { href: "http://localhost/" }, performance, console, URL, TextDecoder };
worker.WorkerGlobalScope = class {};
worker.XMLHttpRequest = class {
  open(_method, url) {
    this.response = Uint8Array.from(fs.readFileSync(path.join(folder, path.basename(url)))).buffer;
  }
  send() {}
};
worker.self = worker;
vm.runInNewContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);
const port = { postMessage: onReply };
worker.onmessage({ data: port });

setTimeout(() => {
  const ownArray = vm.runInContext("(bytes) => Uint8Array.from(bytes)", worker); // the worker accepts no array but its own
  const send = (bytes) => port.onmessage({ data: ownArray(bytes) });
  send(request(1, APPEND, blob(101, fs.readFileSync(trace))));
  send(request(2, FINALIZE, Buffer.alloc(0)));
  send(request(3, QUERY, blob(103, blob(1, Buffer.from(sql)))));
  const rows = [];
  while (cells.length) rows.push(Object.fromEntries(names.map((name) => [name, cells.shift()])));
  process.stdout.write(JSON.stringify(rows));
});

// Parse the AsyncAPI document named by the second argument with the parser found in the folder named by the first;
// print {"channels", "operations", "diagnostics": [{"severity", "code", "message", "path"}]}. Severity 0: error,
// 1: warning, 2 and 3: information.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [folder, file] = process.argv.slice(2);
const { Parser } = createRequire(join(folder, "package.json"))("@asyncapi/parser");
const { document, diagnostics } = await new Parser().parse(readFileSync(file, "utf8"));
const shown = diagnostics.map(({ severity, code, message, path }) => ({
  severity,
  code,
  message,
  path: path.join("."),
}));
const channels = document?.channels().length ?? 0;
const operations = document?.operations().length ?? 0;
console.log(JSON.stringify({ channels, operations, diagnostics: shown }));

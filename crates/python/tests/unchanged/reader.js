// Reads the files that its arguments name in the ways of Node.js, and prints a digest of each.

const { createHash } = require("node:crypto");
const fs = require("node:fs");

async function digest(path) {
  const hash = createHash("sha256").update(fs.readFileSync(path));
  hash.update(await fs.promises.readFile(path));
  for await (const piece of fs.createReadStream(path)) hash.update(piece);
  return hash.digest("hex");
}

Promise.all(process.argv.slice(2).map(digest)).then((digests) => console.log(digests.join("\n")));

// SPDX-License-Identifier: Apache-2.0
// Tests the part of the trace's page that needs no browser.  Any JavaScript engine runs it:
//   node page.js PAGE.html BLOCKS OPENS LEAKS
"use strict";
const fs = require("fs"), assert = require("assert");
const html = fs.readFileSync(process.argv[2], "utf8");
function script(id) {
	const found = new RegExp('<script id="' + id + '"[^>]*>([^]*?)</script>').exec(html);
	assert(found, "there is a script " + id);
	return found[1];
}
const core = new Function(script("core") + ";return {STATES, makeModel, select, layOut, packRows," +
	"densityOf, depthOf, limboAt, limboPeak, describe, timeText, sizeText};")();
new Function(script("ui")); // it can be read; a browser runs it

// in both themes the text on a bar stands out from the colour of each state
function light(colour) { // relative luminance, as WCAG has it
	const part = (at) => {
		const c = parseInt(colour.slice(at, at + 2), 16) / 255;
		return c <= 0.04045 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4);
	};
	return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
}
const themes = [...html.matchAll(/^:root\S* \{([^}]*)\}/gm)].map((m) =>
	Object.fromEntries([...m[1].matchAll(/--([a-z-]+): (#[0-9a-f]{6});/g)].map((c) => [c[1], c[2]])));
assert.strictEqual(themes.length, 2);
themes.forEach((theme) => core.STATES.forEach((s) => {
	const one = light(theme[s[0] === "leaked" ? "ink-leaked" : "ink"]), other = light(theme[s[0]]);
	const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
	assert(contrast > 3.8, "text on " + s[0] + ": " + contrast.toFixed(2));
}));

const model = core.makeModel(JSON.parse(script("data"))), shown = {};
core.STATES.forEach((s) => { shown[s[0]] = true; });
assert.strictEqual(model.blocks.length, +process.argv[3]);
assert.strictEqual(model.opens.length, +process.argv[4]);

// every life is whole: phases follow each other without a gap, from begin to end
model.blocks.forEach((b) => {
	assert(b.phases.length > 0);
	assert.strictEqual(b.phases[0][1], b.begin);
	assert.strictEqual(b.phases[b.phases.length - 1][2], b.end);
	b.phases.forEach((p, i) => {
		assert(p[2] >= p[1]);
		assert(!i || p[1] === b.phases[i - 1][2]);
	});
	assert(core.describe(model, b).rows.length > 3);
});
["alloc", "exported", "held", "ready"].forEach((state) => assert(model.blocks.some((b) =>
	b.phases.some((p) => p[0] === state && p[2] > p[1])), "some are " + state));
model.opens.forEach((o) => {
	assert(model.blocks[o.block] && model.blocks[o.block].exported <= o.begin, "exported before it is opened");
	assert(core.describe(model, o).rows.length > 3);
});
// a freed block is held as long as somebody has it open, also in its grace
model.blocks.filter((b) => b.limbo >= 0).forEach((b) => b.phases.forEach((p) => {
	if (p[0] === "grace")
		assert(!b.opens.some((o) => Math.min(o.end, p[2]) > Math.max(o.begin, p[1])), "nobody has a block of grace open");
}));
// call stacks lead to the lines of the program; where all processes have left theirs, all blocks have them
const STACK = /\bplayer\.c:\d+$/;
model.blocks.filter((b) => b.exported >= 0 && !b.event).forEach((b) => {
	assert(b.stack.length && STACK.test(b.stack[0]), "where it was exported");
	const rows = core.describe(model, b, true).rows.filter((r) => r[0] === "exported from");
	assert.strictEqual(rows.length, 1);
	assert(!core.describe(model, b).rows.some((r) => r[0] === "exported from"), "the tip has no stacks");
});
assert(model.blocks.some((b) => b.freedAt.length && STACK.test(b.freedAt[0])), "where it was freed");
model.opens.forEach((o) => assert(o.stack.length && o.stack.some((l) => STACK.test(l)), "where it was opened"));
// what was never closed is marked, and the filter finds it with its block
const leaked = model.opens.filter((o) => o.leaked);
assert.strictEqual(leaked.length, +process.argv[5]);
leaked.forEach((o) => assert.strictEqual(o.phases[0][0], "leaked"));
const found = core.select(model, "leaked", shown);
assert.strictEqual(found.opens.length, leaked.length);
assert.strictEqual(found.blocks.length, new Set(leaked.map((o) => o.block)).size);
// of a filter, processes that have something of it come first, in their order; marks still find theirs
const narrow = core.layOut(model, found, 0, model.span), empty = narrow.lanes.map((lane) => !lane.groups.length);
assert.strictEqual(narrow.lanes.length, model.procs.length);
assert(!leaked.length || !empty[0]);
assert(empty.every((is, i) => !i || is >= empty[i - 1]), "lanes with nothing of it are last");
narrow.lanes.forEach((lane, i) => assert(!i || lane.y > narrow.lanes[i - 1].y));
model.procs.forEach((proc, i) => assert.strictEqual(narrow.of[i].proc, proc));
// the limbo by state: its sum is what the library counted, where it has no events and nothing lost
model.procs.forEach((proc, i) => {
	const its = model.blocks.filter((b) => b.proc === i);
	if (its.some((b) => b.limbo >= 0))
		assert(Math.abs(core.limboPeak(its) - proc.peak) <= 0.02 * proc.peak, "the peak of the limbo");
	const bytes = core.limboAt(its, model.span / 2), sum = its.filter((b) => b.limbo >= 0 &&
		b.limbo <= model.span / 2 && model.span / 2 < b.end).reduce((n, b) => n + b.size, 0);
	assert.strictEqual(bytes.held + bytes.grace + bytes.ready, sum);
});
// rows do not overlap and hold all; lanes neither
const all = core.select(model, "", shown), layout = core.layOut(model, all, 0, model.span);
let bars = 0, below = 0, dense = 0;
layout.lanes.forEach((lane) => {
	assert(lane.y >= below);
	below = lane.y + lane.height;
	lane.groups.forEach((group) => {
		assert(group.y >= lane.y && group.y + group.height <= below);
		if (!group.rows) {
			dense++;
			bars += group.bars.length;
			return;
		}
		group.rows.forEach((row) => {
			bars += row.length;
			row.forEach((bar, i) => assert(!i || bar.begin > row[i - 1].end));
		});
	});
});
assert.strictEqual(bars, model.blocks.length + model.opens.length);
// density counts what is there: the sum over time is the sum of the lives
const counts = core.densityOf(model.blocks, 0, model.span, 500), width = model.span / 500;
let sum = 0, lives = 0;
core.STATES.forEach((s) => { for (let i = 0; i < 500; i++) sum += counts[s[0]][i] * width; });
model.blocks.forEach((b) => { lives += b.end - b.begin; });
assert(Math.abs(sum - lives) < lives * 1e-6 + 1);
// a filter leaves what it names, with what belongs to it
const one = model.blocks.find((b) => b.opens.length);
const few = core.select(model, one.key + " " + model.procs[one.proc].pid, shown);
assert(few.blocks.indexOf(one) >= 0 && few.blocks.length < model.blocks.length);
assert(few.opens.indexOf(one.opens[0]) >= 0);
const least = Math.min(...model.blocks.map((b) => b.size)), larger = core.select(model, ">" + least, shown).blocks;
assert(larger.length > 0 && larger.length === model.blocks.filter((b) => b.size > least).length);
assert(larger.every((b) => b.size > least));
assert.strictEqual(core.select(model, ">1EiB nothing", shown).blocks.length, 0);
assert.strictEqual(core.timeText(1500000), "1.5 ms");
assert.strictEqual(core.sizeText(2097152), "2 MiB");
console.log(bars + " bars in " + layout.lanes.length + " lanes, " + dense + " dense");

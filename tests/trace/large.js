// SPDX-License-Identifier: Apache-2.0
// The test puts this around a large page, before its scripts and at its end.  It counts what the page
// draws at once, and takes the time of each thing that a user does.
"use strict";
(function () {
	const body = document.body, canvas2d = CanvasRenderingContext2D.prototype;
	if (!window.large) { // the first time: before the page's own scripts
		window.large = { drawn: 0, begun: performance.now() };
		window.requestAnimationFrame = (f) => f(); // what is drawn is drawn at once
		["fillRect", "strokeRect", "fillText", "stroke", "fill"].forEach((name) => {
			const was = canvas2d[name];
			canvas2d[name] = function () {
				window.large.drawn++;
				return was.apply(this, arguments);
			};
		});
		return;
	}
	const $ = (id) => document.getElementById(id), canvas = $("canvas"), large = window.large;
	const took = { load: performance.now() - large.begun }, elements = { load: large.drawn };
	function takes(what, act) {
		const begun = performance.now();
		large.drawn = 0;
		act();
		canvas.getContext("2d").getImageData(0, 0, 1, 1); // the picture is there, too
		took[what] = performance.now() - begun;
		elements[what] = large.drawn;
	}
	const key = (name) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
	function type(text) {
		$("search").value = text;
		$("search").dispatchEvent(new Event("input"));
	}
	function pointer(kind, x, y) {
		const r = canvas.getBoundingClientRect();
		canvas.dispatchEvent(new PointerEvent(kind, { clientX: r.left + x, clientY: r.top + y, pointerId: 1, bubbles: true, cancelable: true }));
	}
	canvas.setPointerCapture = () => {}; // (no such pointer)
	takes("in", () => key("+"));
	takes("deep", () => { for (let i = 0; i < 8; i++) key("+"); });
	takes("fit", () => key("0"));
	takes("move", () => pointer("pointermove", canvas.clientWidth / 2, 300));
	takes("next", () => key("n"));
	takes("filter", () => type(">1KiB held"));
	takes("all", () => type(""));
	takes("table", () => { $("list").open = true; $("list").dispatchEvent(new Event("toggle")); });
	takes("theme", () => $("theme").click());
	body.dataset.took = JSON.stringify(took);
	body.dataset.drew = JSON.stringify(elements);
	body.dataset.rows = document.querySelectorAll("#table tr").length;
	body.dataset.nodes = document.querySelectorAll("*").length;
	body.dataset.large = 1;
})();

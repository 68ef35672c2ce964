// SPDX-License-Identifier: Apache-2.0
// Uses the trace's page as a user does, by events.  The test puts this script at the end of the page.
// It writes errors to body's attribute data-wrong, and sets data-operated when it has run to its end.
"use strict";
(function () {
	const $ = (id) => document.getElementById(id), canvas = $("canvas"), body = document.body, wrong = [];
	const picture = () => canvas.toDataURL();
	const frame = () => new Promise((done) => setTimeout(done, 50));
	const detail = () => $("detail").textContent;
	function pointer(type, x, y) {
		const r = canvas.getBoundingClientRect(), e = new PointerEvent(type, { clientX: r.left + x,
			clientY: r.top + y, pointerId: 1, bubbles: true, cancelable: true });
		canvas.dispatchEvent(e);
	}
	async function key(name, on) {
		(on || document.activeElement).dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
		await frame();
	}
	async function type(text) {
		$("search").value = text;
		$("search").dispatchEvent(new Event("input"));
		await frame();
		return +body.dataset.shown;
	}
	function check(what, right) {
		if (!right)
			wrong.push(what);
	}
	async function changes(what, act) {
		const before = picture();
		await act();
		await frame();
		check(what, picture() !== before);
	}
	async function operate() {
		canvas.setPointerCapture = () => {}; // (no such pointer)
		await frame();
		const all = +body.dataset.shown;
		let x, y, bar = null;
		await changes("+ zooms, nothing being focused", () => key("+", body));
		await key("0");
		$("theme").focus();
		await changes("+ zooms, a button being focused", () => key("+"));
		await changes("0 fits", () => key("0"));
		for (y = 40; !bar && y < canvas.clientHeight; y += 5)
			for (x = 220; !bar && x < canvas.clientWidth; x += 20) {
				pointer("pointermove", x, y);
				if (!$("tip").hidden && /^Block/.test($("tip").textContent))
					bar = [x, y];
			}
		check("a block has a tooltip", bar);
		pointer("pointerdown", bar[0], bar[1]);
		pointer("pointerup", bar[0], bar[1]);
		check("a click shows it", /^Block/.test(detail()));
		check("and the tooltip goes", $("tip").hidden);
		pointer("pointermove", bar[0], bar[1]);
		check("there is no tooltip over what the panel shows", $("tip").hidden && /^Block/.test(detail()));
		const first = detail();
		await key("n");
		check("n goes to the next", /^Block/.test(detail()) && detail() !== first);
		await key("p");
		check("p goes back", detail() === first);
		canvas.focus();
		await changes("Enter zooms to it", () => key("Enter"));
		await key("Escape");
		check("Escape lets go", detail() === "");
		await changes("Fit", () => $("fit").click());
		await changes("the button +", () => $("in").click());
		await changes("the button -", () => $("out").click());
		const wheel = (o) => canvas.dispatchEvent(new WheelEvent("wheel", Object.assign({ bubbles: true, cancelable: true }, o)));
		await changes("Ctrl and wheel", () => wheel({ ctrlKey: true, deltaY: -300 }));
		await changes("the wheel sideways", () => wheel({ deltaX: 120 }));
		await changes("dragging", () => {
			pointer("pointerdown", 600, 300);
			pointer("pointermove", 400, 300);
			pointer("pointerup", 400, 300);
		});
		await changes("ArrowLeft", () => key("ArrowLeft"));
		await key("0");
		await key("/");
		check("/ goes to the filter", document.activeElement === $("search"));
		check("it filters by state of the block", await type("held") > 0 && +body.dataset.shown < all);
		check("it filters by state of the process", await type("killed") > 0 && +body.dataset.shown < all);
		await type("");
		canvas.focus();
		await key("n");
		check("n shows one", detail() !== "");
		$("search").focus();
		check("it filters to nothing", await type("no-such-thing") === 0 && /^No block/.test($("listhead").textContent));
		check("the panel shows nothing that is filtered out", detail() === "");
		await key("Escape");
		check("Escape ends the filter", $("search").value === "" && +body.dataset.shown === all);
		check("and leaves it", document.activeElement === canvas);
		await changes("what was never closed, by the button", () => $("leaks").click());
		check("only its blocks are left", +body.dataset.leaks > 0 && +body.dataset.shown === +body.dataset.leaks && $("search").value === "leaked");
		$("leaks").click();
		await frame();
		check("and all by it again", +body.dataset.shown === all);
		let sums = "";
		// where a process began or ended there is a mark, which has a tip of its own
		for (let part = 2; !sums && part < 9; part++)
			for (y = 30; !sums && y < 80; y += 5) {
				pointer("pointermove", canvas.clientWidth / part, y);
				sums = $("tip").hidden || !/^Limbo/.test($("tip").textContent) ? "" : $("tip").textContent;
			}
		check("the limbo has its sum and states under the pointer", /^Limbo of .*in all.*held by importers.*grace/.test(sums));
		await changes("a state that is not to be shown", () => document.querySelector("#states input").click());
		document.querySelector("#states input").click();
		await frame(); // (what is drawn late must not be taken for the theme)
		const theme = document.documentElement.dataset.theme;
		await changes("the theme", () => $("theme").click());
		check("the theme is another", document.documentElement.dataset.theme !== theme);
		$("list").open = true;
		await frame();
		check("the table has each block", document.querySelectorAll("#table tr").length === all + 1);
		await changes("a block of the table", () => document.querySelector("#table button").click());
		check("it is shown", /^Block/.test(detail()));
		for (const wide of [800, 1280]) {
			body.style.width = wide + "px";
			await frame();
			const list = $("list");
			check("the table is whole at " + wide + " pixels: " + list.scrollWidth + " of " + list.clientWidth, list.scrollWidth <= list.clientWidth);
		}
		body.style.width = "";
		check("the panel is high enough beside the table: " + $("detail").clientHeight + " of " + $("detail").scrollHeight,
			$("detail").clientHeight >= Math.min(100, $("detail").scrollHeight));
		check("so is the picture: " + $("scroll").clientHeight, $("scroll").clientHeight >= 100);
		check("all is within the window: " + body.scrollHeight + " of " + innerHeight, body.scrollHeight <= Math.max(innerHeight, 540) + 1);
	}
	operate().catch((e) => wrong.push(String(e))).then(() => {
		body.dataset.wrong = wrong.join("; ");
		body.dataset.operated = 1;
	});
})();

// Draws the page again with the next frame. Several requests before this frame lead to one drawing. app.js decides
// what is drawn.

let draw = () => {};
let asked = false;

/** Sets the function that draws the page. @param {() => void} how */
export function onRedraw(how) {
  draw = how;
}

/** Draws the page with the next frame. A hidden page is drawn when it becomes visible again. */
export function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
}

// Asks for the page to be drawn again, once a frame at most, however often it is asked. app.js decides what is drawn.

let draw = () => {};
let asked = false;

/** Says how the page is drawn. @param {() => void} how */
export function onRedraw(how) {
  draw = how;
}

/** Has the page drawn with the next frame. A page that is hidden is drawn when it is seen again. */
export function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
}

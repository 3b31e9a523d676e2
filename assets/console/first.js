// What is done before the first paint: the theme that was chosen, so that nothing is shown in the wrong colours, and a hint which
// texts will be needed. A classic script; it must never do more than this.
(() => {
  const root = document.documentElement;
  const system = matchMedia('(prefers-color-scheme: dark)');
  // What was chosen is `theme`, what is shown is `scheme`.
  const show = () => { root.dataset.scheme = root.dataset.theme ?? (system.matches ? 'dark' : 'light'); };
  let language = null;
  try {
    const theme = localStorage.getItem('dq.theme');
    if (theme === 'light' || theme === 'dark') root.dataset.theme = theme;
    language = localStorage.getItem('dq.language');
  } catch {
    // Storage may be forbidden: then it is the system's theme, and the browser's language.
  }
  show();
  system.addEventListener('change', show);
  window.addEventListener('dq-theme', show);
  const wanted = language ?? (navigator.languages ?? []).map((tag) => tag.slice(0, 2).toLowerCase()).find((tag) => tag === 'zh' || tag === 'en');
  const link = document.createElement('link');
  link.rel = 'modulepreload';
  link.href = `/console/words/${wanted === 'zh' ? 'zh' : 'en'}.js`;
  document.head.append(link);
})();

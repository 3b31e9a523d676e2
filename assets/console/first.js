// Runs before the first paint. It sets the chosen theme, so that nothing is shown in the wrong colours. It also tells
// the browser which texts will be needed. It is a classic script, not a module, and must never do more than this.
(() => {
  const root = document.documentElement;
  const system = matchMedia('(prefers-color-scheme: dark)');
  // `theme` is the user's choice. `scheme` is what is shown.
  const show = () => { root.dataset.scheme = root.dataset.theme ?? (system.matches ? 'dark' : 'light'); };
  let language = null;
  try {
    const theme = localStorage.getItem('dq.theme');
    if (theme === 'light' || theme === 'dark') root.dataset.theme = theme;
    language = localStorage.getItem('dq.language');
  } catch {
    // Storage may be forbidden. Then the theme of the system and the language of the browser are used.
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

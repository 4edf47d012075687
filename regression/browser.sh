# To be sourced: in_browser <page> has a browser read a page, of which `dom` is then what it made, and fails where that
# browser complains of something or shows an empty page. Without a browser it says so and does nothing.
has_browser() { command -v chromium > /dev/null || { echo "no browser: nobody looked at the page"; return 1; }; }
# Whether a browser has nothing to say against a page.
browse() {
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,2400 --enable-logging=stderr \
    --dump-dom "file://$1" > dom 2> console || { cat console; return 1; }
  ! grep CONSOLE console
}
in_browser() {
  case $1 in /*) page=$1 ;; *) page=$PWD/$1 ;; esac
  browse "$page" || return 1
  # It would complain: of a picture from elsewhere, and of a script.
  for foreign in '<img src="http://localhost/x.png">' '<script>alert(1)</script>'; do
    sed "s|</body>|$foreign</body>|" "$page" > foreign.html
    if browse "$PWD/foreign.html" > complaint; then echo "a browser lets $foreign pass"; return 1; fi
    grep -q 'Content Security Policy' complaint || { cat complaint; return 1; }
  done
  browse "$page"
  chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,2400 --screenshot=page.png \
    "file://$page" > /dev/null 2>&1
  # An empty page of this size has 10 KB.
  [ "$(stat -c %s page.png)" -gt 60000 ] || { echo "a browser shows next to nothing"; return 1; }
}
# How often something stands in what the browser made: pictures <pattern> <times>
pictures() {
  found=$(grep -o -- "$1" dom | wc -l)
  [ "$found" -eq "$2" ] || { echo "a browser has $found of $1 instead of $2"; return 1; }
}

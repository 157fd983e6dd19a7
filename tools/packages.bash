# What ./run package and ./run wheel do; read by ./run.

make_package() {
  local package=package/teratron tests=()
  [[ $# -eq 0 || $* == --with-tests ]] || die "unknown option of package: $*" "See ./run help."
  [[ -n $architectures ]] || has_gpu || architectures="80;90a-real"
  folder=build/package  # its architectures differ from those of other commands
  need_packages "${BUNDLE_PACKAGES[@]}"
  if [[ $# -gt 0 ]]; then
    build
    mapfile -t tests < <(find "$folder" -name '*_test' -type f -executable)
  else
    build teratron
  fi
  tools/bundle "$package" "$(binary)" "${tests[@]}"
  tools/man_pages "$(binary)" "$package/share/man"
  say "$package: $(du -sm "$package" | cut -f1) MiB; start it with $package/teratron"
}

build_wheel() {
  need_packages "${BUNDLE_PACKAGES[@]}"
  build teratron_wheel_program teratron_python
  locked build/wheel tools/wheel "$folder" "${python:-$VENV/bin/python}" || die "the wheel could not be packed." "See above."
}

make_wheel() {
  [[ -z $architectures ]] || folder=build/wheel-$preset  # those of other commands differ
  build_wheel
  say "$(du -m dist/*.whl | sed "s/\t/ MiB: /"); install it with pip"
}

# The step "Python package" of ./run test.
try_wheel() {
  [[ $preset == release ]] || { say "skipped: the wheel is one of preset release" && return; }
  build_wheel && tools/test_wheel
}

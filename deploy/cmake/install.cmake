# cmake --install BUILD --prefix DIR: one prefix, without root. bin/ (hedgerow, hedgerow-worker), lib/libhedgerow_ops.so,
# share/hedgerow/. LibTorch is found in DIR/venv (HEDGEROW_CACHE=DIR deploy/setup makes it there; then the prefix may be moved), else
# where it was at build time; other libraries where they were linked from, as modules of a cluster are not in the loader's path.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
cmake_path(GET HEDGEROW_TORCH_DIR PARENT_PATH _site_packages)
cmake_path(GET _site_packages PARENT_PATH _python)
cmake_path(GET _python FILENAME _python)
if(_python MATCHES "^python3")
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../venv/lib/${_python}/site-packages/torch/lib")
endif()

install(DIRECTORY deploy/huggingface DESTINATION share/hedgerow PATTERN __pycache__ EXCLUDE)
install(DIRECTORY deploy/recipes deploy/systemd deploy/kubernetes DESTINATION share/hedgerow)
install(FILES LICENSE DESTINATION share/hedgerow)

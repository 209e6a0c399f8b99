# LibTorch from the Python wheel that deploy/setup installs (HEDGEROW_TORCH_DIR or its virtual environment).
# find_package(Torch) on a CUDA wheel demands a CUDA toolkit; two imported libraries do not, and a program that
# links only libtorch_cpu starts in 0.3 s instead of seconds.
set(HEDGEROW_TORCH_DIR "" CACHE PATH "The torch package directory (holds include/ and lib/)")
if(NOT HEDGEROW_TORCH_DIR)
  set(_cache $ENV{HEDGEROW_CACHE})
  if(NOT _cache)
    set(_cache $ENV{HOME}/.cache/hedgerow)
  endif()
  file(GLOB _candidates ${_cache}/venv/lib/python3*/site-packages/torch)
  list(GET _candidates 0 HEDGEROW_TORCH_DIR)
endif()
if(NOT EXISTS ${HEDGEROW_TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found (HEDGEROW_TORCH_DIR='${HEDGEROW_TORCH_DIR}'); run deploy/setup, or point "
    "HEDGEROW_TORCH_DIR at an installed torch 2.11.0 package directory")
endif()
file(STRINGS ${HEDGEROW_TORCH_DIR}/version.py _version REGEX "^__version__ = ")
string(REGEX REPLACE "^__version__ = '([^']+)'.*" "\\1" HEDGEROW_TORCH_VERSION "${_version}")

add_library(hedgerow_c10 SHARED IMPORTED)
set_target_properties(hedgerow_c10 PROPERTIES IMPORTED_LOCATION ${HEDGEROW_TORCH_DIR}/lib/libc10.so)
add_library(hedgerow_torch SHARED IMPORTED)
set_target_properties(hedgerow_torch PROPERTIES IMPORTED_LOCATION ${HEDGEROW_TORCH_DIR}/lib/libtorch_cpu.so)
target_include_directories(hedgerow_torch SYSTEM INTERFACE
  ${HEDGEROW_TORCH_DIR}/include ${HEDGEROW_TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(hedgerow_torch INTERFACE hedgerow_c10)
# at::parallel_for is an inline template that is serial without OpenMP. The wheel brings libgomp.so.1 under its plain
# name, so program and library share one runtime and one pool of threads.
target_compile_options(hedgerow_torch INTERFACE -fopenmp)
target_link_options(hedgerow_torch INTERFACE -fopenmp)

# CUDA: the compiler of an installed toolkit, or of the wheels of deploy/setup --cuda, and the CUDA half of LibTorch.
set(HEDGEROW_HAVE_CUDA OFF)
set(_with_cuda ${HEDGEROW_CUDA})
if(NOT _with_cuda STREQUAL "OFF" AND NOT EXISTS ${HEDGEROW_TORCH_DIR}/lib/libtorch_cuda.so)
  if(_with_cuda STREQUAL "ON")
    message(FATAL_ERROR "HEDGEROW_CUDA=ON, but ${HEDGEROW_TORCH_DIR} is a LibTorch for the CPU alone; run "
      "deploy/setup --cuda, or point HEDGEROW_TORCH_DIR at a LibTorch with CUDA")
  endif()
  # A toolkit alone computes nothing, and what is linked below would not be there.
  set(_with_cuda OFF)
endif()
if(NOT _with_cuda STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(HEDGEROW_WHEEL_NVCC nvcc PATHS ${HEDGEROW_TORCH_DIR}/../nvidia/cu13/bin NO_DEFAULT_PATH)
    if(HEDGEROW_WHEEL_NVCC)
      set(CMAKE_CUDA_COMPILER ${HEDGEROW_WHEEL_NVCC})
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    set(HEDGEROW_HAVE_CUDA ON)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 80-virtual)
    endif()
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      # CMake 3.25 does not know that nvcc 12 and later compile C++20.
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    file(STRINGS ${HEDGEROW_TORCH_DIR}/version.py _torch_cuda REGEX "^cuda[^=]*= *'[0-9.]+'")
    string(REGEX MATCH "[0-9]+[.]" _torch_cuda "${_torch_cuda}")
    if(_torch_cuda AND NOT CMAKE_CUDA_COMPILER_VERSION MATCHES "^${_torch_cuda}")
      # Two CUDA runtimes in a process, and structures read through the other's headers.
      message(FATAL_ERROR "LibTorch is of CUDA ${_torch_cuda}x, but ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}; "
        "unload that toolkit (module unload cuda) and run deploy/setup --cuda, or load the CUDA toolkit ${_torch_cuda}x")
    endif()
    find_package(CUDAToolkit REQUIRED)
  elseif(HEDGEROW_CUDA STREQUAL "ON")
    message(FATAL_ERROR "HEDGEROW_CUDA=ON, but no CUDA compiler was found; run deploy/setup --cuda, or install the CUDA "
      "toolkit 13.0")
  endif()
endif()
if(NOT HEDGEROW_HAVE_CUDA)
  return()
endif()

# The CUDA half. Its kernels are found by registration and not by symbols, so it must not be dropped as unused.
add_library(hedgerow_c10_cuda SHARED IMPORTED)
set_target_properties(hedgerow_c10_cuda PROPERTIES IMPORTED_LOCATION ${HEDGEROW_TORCH_DIR}/lib/libc10_cuda.so)
add_library(hedgerow_torch_cuda SHARED IMPORTED)
set_target_properties(hedgerow_torch_cuda PROPERTIES IMPORTED_LOCATION ${HEDGEROW_TORCH_DIR}/lib/libtorch_cuda.so)
target_link_libraries(hedgerow_torch INTERFACE
  -Wl,--push-state,--no-as-needed hedgerow_torch_cuda -Wl,--pop-state hedgerow_c10_cuda CUDA::cudart)
# libtorch_cuda finds its own libraries (cuDNN, NCCL and others) beside the wheel or in the toolkit.
target_link_options(hedgerow_torch INTERFACE -Wl,--allow-shlib-undefined)

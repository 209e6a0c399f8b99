# NCCL: a part of CUDA builds alone. The wheel beside LibTorch comes first, since the process loads one libnccl.so.2 and LibTorch
# looks there; then the toolkit, then the system.
set(HEDGEROW_HAVE_NCCL OFF)
if(HEDGEROW_NCCL STREQUAL "OFF")
  return()
endif()
if(NOT HEDGEROW_HAVE_CUDA)
  if(HEDGEROW_NCCL STREQUAL "ON")
    message(FATAL_ERROR "HEDGEROW_NCCL=ON, but this build has no CUDA; configure with HEDGEROW_CUDA=ON")
  endif()
  return()
endif()

set(_wheel ${HEDGEROW_TORCH_DIR}/../nvidia/nccl)
find_path(HEDGEROW_NCCL_INCLUDE_DIR nccl.h HINTS ${_wheel}/include ${CUDAToolkit_INCLUDE_DIRS})
find_file(HEDGEROW_NCCL_LIBRARY libnccl.so.2
  HINTS ${_wheel}/lib ${CUDAToolkit_LIBRARY_DIR} PATHS /usr/lib PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE})
set(_version 0)
if(EXISTS ${HEDGEROW_NCCL_INCLUDE_DIR}/nccl.h)
  file(STRINGS ${HEDGEROW_NCCL_INCLUDE_DIR}/nccl.h _lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" _numbers "${_lines}")
  string(REPLACE ";" "." _version "${_numbers}")
endif()
# 2.14 brought communicators that do not block (ncclConfig_t).
if(NOT HEDGEROW_NCCL_LIBRARY OR _version VERSION_LESS 2.14)
  if(HEDGEROW_NCCL STREQUAL "ON")
    message(FATAL_ERROR "HEDGEROW_NCCL=ON, but nccl.h of 2.14 or newer and libnccl.so.2 were not found "
      "(nccl.h: ${HEDGEROW_NCCL_INCLUDE_DIR}, version ${_version}; library: ${HEDGEROW_NCCL_LIBRARY}); run deploy/setup --cuda, "
      "or install the wheel nvidia-nccl-cu13 or the package libnccl-dev")
  endif()
  message(STATUS "hedgerow: no NCCL was found, so GPUs exchange gradients through MPI")
  return()
endif()
set(HEDGEROW_HAVE_NCCL ${_version})
add_library(hedgerow_nccl SHARED IMPORTED)
set_target_properties(hedgerow_nccl PROPERTIES
  IMPORTED_LOCATION ${HEDGEROW_NCCL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${HEDGEROW_NCCL_INCLUDE_DIR})

# Third-party packages. Nothing is downloaded here: deploy/setup installs what is missing.
# Each becomes one imported target, so that the folders link names and never paths.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)

set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 REQUIRED COMPONENTS C)
add_library(hedgerow_hdf5 INTERFACE)
target_include_directories(hedgerow_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(hedgerow_hdf5 INTERFACE ${HDF5_C_LIBRARIES})

pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
# 4.3.3 fixes CVE-2020-15166 (a raw TCP connect stalls CURVE clients).
pkg_check_modules(zmq REQUIRED IMPORTED_TARGET libzmq>=4.3.3)
# Of its own headers alone. What pkg-config adds is for the libraries behind libzmq, and from its cache CMake reads "-isystem DIR"
# otherwise than at first: configuring again would change every command line and compile everything anew.
set_target_properties(PkgConfig::zmq PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${zmq_INCLUDEDIR}" INTERFACE_COMPILE_OPTIONS "")

find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)

# Beast and Asio, of headers alone.
find_package(Boost 1.74 REQUIRED)
add_library(hedgerow_beast INTERFACE)
target_include_directories(hedgerow_beast SYSTEM INTERFACE ${Boost_INCLUDE_DIRS})
find_package(prometheus-cpp REQUIRED)

set(HEDGEROW_HAVE_MPI OFF)
if(NOT HEDGEROW_MPI STREQUAL "OFF")
  find_package(MPI COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(HEDGEROW_HAVE_MPI ON)
  elseif(HEDGEROW_MPI STREQUAL "ON")
    message(FATAL_ERROR "HEDGEROW_MPI=ON, but no MPI was found; install libopenmpi-dev and openmpi-bin")
  endif()
endif()

if(HEDGEROW_FUZZ)
  message(STATUS "hedgerow ${PROJECT_VERSION}: fuzz targets by ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  return()
endif()
include(${CMAKE_CURRENT_LIST_DIR}/torch.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/nccl.cmake)

message(STATUS "hedgerow ${PROJECT_VERSION}: LibTorch ${HEDGEROW_TORCH_VERSION}, "
  "MPI ${HEDGEROW_HAVE_MPI}, CUDA ${HEDGEROW_HAVE_CUDA}, NCCL ${HEDGEROW_HAVE_NCCL}, HDF5 ${HDF5_VERSION}")

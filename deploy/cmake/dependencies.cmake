# Third-party packages. deploy/setup installs what is missing; without -DHEDGEROW_FETCH=ON nothing is downloaded here (archives.cmake).
# Each becomes one imported target, so that the folders link names and never paths.
include(${CMAKE_CURRENT_LIST_DIR}/archives.cmake)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  hedgerow_take(nlohmann_json nlohmann-json3-dev)
endif()
find_package(fmt QUIET)
if(NOT fmt_FOUND)
  hedgerow_take(fmt libfmt-dev)
endif()
find_package(CLI11 QUIET)
if(NOT CLI11_FOUND)
  hedgerow_take(CLI11 libcli11-dev)
endif()

set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 REQUIRED COMPONENTS C)
add_library(hedgerow_hdf5 INTERFACE)
target_include_directories(hedgerow_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(hedgerow_hdf5 INTERFACE ${HDF5_C_LIBRARIES})

pkg_check_modules(xxhash QUIET IMPORTED_TARGET libxxhash)
if(NOT xxhash_FOUND)
  hedgerow_take(xxHash libxxhash-dev)
endif()
# 4.3.3 fixes CVE-2020-15166 (a raw TCP connect stalls CURVE clients).
pkg_check_modules(zmq QUIET IMPORTED_TARGET libzmq>=4.3.3)
if(NOT zmq_FOUND)
  message(FATAL_ERROR "pkg-config knows no libzmq 4.3.3 or newer. Load the module ZeroMQ of your cluster, or install what Debian "
    "calls libzmq3-dev and conda-forge zeromq; one built with libsodium, for connections are encrypted by CURVE. Where it is in a "
    "folder of its own: PKG_CONFIG_PATH=FOLDER/lib/pkgconfig.")
endif()
# Of its own headers alone. What pkg-config adds is for the libraries behind libzmq, and from its cache CMake reads "-isystem DIR"
# otherwise than at first: configuring again would change every command line and compile everything anew.
set_target_properties(PkgConfig::zmq PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${zmq_INCLUDEDIR}" INTERFACE_COMPILE_OPTIONS "")

include(CheckSourceRuns)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::zmq)
check_source_runs(C "#include <zmq.h>
int main(void) { return zmq_has(\"curve\") == 1 ? 0 : 1; }" HEDGEROW_ZMQ_HAS_CURVE)
unset(CMAKE_REQUIRED_LIBRARIES)
if(NOT HEDGEROW_ZMQ_HAS_CURVE)
  message(WARNING "libzmq ${zmq_VERSION} of ${zmq_LIBDIR} has no CURVE, so 'hedgerow keygen' will fail and no worker of another machine "
    "can connect. Use a libzmq that was built with libsodium")
endif()

find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h)
if(NOT TOMLPLUSPLUS_INCLUDE_DIR)
  hedgerow_take(toml++ libtomlplusplus-dev)
endif()

if(HEDGEROW_WEB)
  # Beast and Asio, of headers alone.
  find_package(Boost 1.74 QUIET)
  if(NOT Boost_FOUND)
    hedgerow_take(Boost libboost-dev)
  endif()
  add_library(hedgerow_beast INTERFACE)
  target_include_directories(hedgerow_beast SYSTEM INTERFACE ${Boost_INCLUDE_DIRS})
  find_package(prometheus-cpp QUIET)
  if(NOT prometheus-cpp_FOUND)
    hedgerow_take(prometheus-cpp prometheus-cpp-dev)
  endif()
endif()

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
if(HEDGEROW_WEB)
  find_file(HEDGEROW_CHART_JS chart.min.js
    PATHS /usr/share/javascript/chart.js /usr/share/nodejs/chart.js/dist
    DOC "Chart.js 3, minified, with which the run's page draws its curves" NO_DEFAULT_PATH)
  if(NOT HEDGEROW_CHART_JS)
    hedgerow_take(chart.js libjs-chart.js)
  endif()
endif()
include(${CMAKE_CURRENT_LIST_DIR}/torch.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/nccl.cmake)

message(STATUS "hedgerow ${PROJECT_VERSION}: LibTorch ${HEDGEROW_TORCH_VERSION}, "
  "MPI ${HEDGEROW_HAVE_MPI}, CUDA ${HEDGEROW_HAVE_CUDA}, NCCL ${HEDGEROW_HAVE_NCCL}, HDF5 ${HDF5_VERSION}, web page ${HEDGEROW_WEB}")

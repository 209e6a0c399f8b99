# Libraries that this machine does not have, taken from pinned archives: -DHEDGEROW_FETCH=ON, for clusters whose modules bring
# compilers, MPI, HDF5 and libzmq and no more. dependencies.cmake calls hedgerow_take(NAME) for each library that it did not find.
# An archive is a file of the folder HEDGEROW_ARCHIVES, or is downloaded where no folder is named; its SHA-256 must be the table's.
option(HEDGEROW_FETCH "Take libraries that are not found from pinned archives" OFF)
set(HEDGEROW_ARCHIVES "$ENV{HEDGEROW_ARCHIVES}" CACHE PATH
  "Folder of those archives, as deploy/setup --archives DIR fills it; empty: download them")

# Each row: name, version, file, its SHA-256, the folder of its URL. deploy/setup reads the rows too, so no row holds a variable.
# Debian 12's, the versions that hedgerow is tested with. Sources are upstream's, but three are packages: the source of Chart.js is
# not its browser file, and of Boost (61 MB) and toml++ only headers are taken, which are the same on every processor.
set(HEDGEROW_ARCHIVE_TABLE
  fmt 9.1.0 fmtlib_9.1.0+ds1.orig.tar.gz
    84ce1c2d0be3a9863935137969dcec6970125caac032f82474640bfc81463583 https://deb.debian.org/debian/pool/main/f/fmtlib
  CLI11 2.1.2 cli11_2.1.2+ds.orig.tar.xz
    8143d20b688e98ccce8e24562d3b68e5f47c12e896c42c7ca8553dbde5bed55d https://deb.debian.org/debian/pool/main/c/cli11
  nlohmann_json 3.11.2 nlohmann-json3_3.11.2.orig.tar.gz
    d69f9deb6a75e2580465c6c4c5111b89c4dc2fa94e3a85fcd2ffcd9a143d9273 https://deb.debian.org/debian/pool/main/n/nlohmann-json3
  toml++ 3.3.0 libtomlplusplus-dev_3.3.0+ds-1_amd64.deb
    2779cce0001466dcf60eb6262ff68a888d49f9e30aee80c499d1d4f6f9f6e12e https://deb.debian.org/debian/pool/main/t/tomlplusplus
  xxHash 0.8.1 xxhash_0.8.1.orig.tar.gz
    3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c https://deb.debian.org/debian/pool/main/x/xxhash
  Boost 1.74.0 libboost1.74-dev_1.74.0+ds1-21_amd64.deb
    ba14fe04d7f138f874bd3ab3a20c4fd1e9f654e271449b8f3e48d20f942dbb93 https://deb.debian.org/debian/pool/main/b/boost1.74
  prometheus-cpp 1.0.1 prometheus-cpp_1.0.1.orig.tar.gz
    593e028d401d3298eada804d252bc38d8cab3ea1c9e88bcd72095281f85e6d16 https://deb.debian.org/debian/pool/main/p/prometheus-cpp
  chart.js 3.9.1 libjs-chart.js_3.9.1+~0.2.1-2_all.deb
    16456ab02ad662f480ae3f4d0769a069f69133d0a957821925bbdd648ae5390a https://deb.debian.org/debian/pool/main/n/node-chart.js
)

# Sets <variable> to the archive of <name> on this machine, checked.
function(hedgerow_find_archive name variable file sha256 url)
  if(HEDGEROW_ARCHIVES)
    set(path ${HEDGEROW_ARCHIVES}/${file})
    if(NOT EXISTS ${path})
      message(FATAL_ERROR "${name} is not installed, and HEDGEROW_ARCHIVES=${HEDGEROW_ARCHIVES} has no file ${file} "
        "(SHA-256 ${sha256}). On a machine with internet: deploy/setup --archives DIR; then copy DIR here.")
    endif()
  else()
    set(path ${CMAKE_BINARY_DIR}/archives/files/${file})
    if(NOT EXISTS ${path})
      message(STATUS "hedgerow: downloading ${url}/${file}")
      file(DOWNLOAD ${url}/${file} ${path}.partial STATUS status INACTIVITY_TIMEOUT 60)
      list(GET status 0 code)
      if(NOT code EQUAL 0)
        file(REMOVE ${path}.partial)
        list(GET status 1 reason)
        message(FATAL_ERROR "${name} is not installed, and ${url}/${file} could not be downloaded: ${reason}. On a machine with "
          "internet: deploy/setup --archives DIR; copy DIR here, and configure with -DHEDGEROW_ARCHIVES=DIR.")
      endif()
      file(RENAME ${path}.partial ${path})
    endif()
  endif()
  file(SHA256 ${path} found)
  if(NOT found STREQUAL sha256)
    message(FATAL_ERROR "${path} is not the archive that is pinned for ${name}: its SHA-256 is ${found}, not ${sha256}. "
      "Delete it; deploy/setup --archives DIR fetches it anew.")
  endif()
  set(${variable} ${path} PARENT_SCOPE)
endfunction()

# Unpacks what matches the patterns once into <build>/archives/<name>, and sets <variable> to that folder. Patterns start below the
# archive's one top folder, or at the root of a package.
function(hedgerow_unpack name variable)
  list(FIND HEDGEROW_ARCHIVE_TABLE ${name} row)
  list(SUBLIST HEDGEROW_ARCHIVE_TABLE ${row} 5 columns)
  list(POP_FRONT columns name version file sha256 url)
  set(folder ${CMAKE_BINARY_DIR}/archives/${name})
  set(${variable} ${folder} PARENT_SCOPE)
  message(STATUS "hedgerow: ${name} ${version} is not installed; taken from ${file}")
  hedgerow_find_archive(${name} archive ${file} ${sha256} ${url})
  set(stamp "${sha256} ${ARGN}")
  if(EXISTS ${folder}.stamp)
    file(READ ${folder}.stamp unpacked)
    if(unpacked STREQUAL stamp)
      return()
    endif()
  endif()
  file(REMOVE_RECURSE ${folder} ${folder}.unpacking)
  if(file MATCHES "\\.deb$")
    file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${folder}.unpacking/package)
    file(GLOB archive ${folder}.unpacking/package/data.tar*)
    set(top "./")
  else()
    set(top "*/")
  endif()
  list(TRANSFORM ARGN PREPEND ${top} OUTPUT_VARIABLE patterns)
  file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${folder}.unpacking/files PATTERNS ${patterns})
  file(GLOB unpacked ${folder}.unpacking/files/*)
  list(LENGTH unpacked count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "${file} has not the one top folder that was expected")
  endif()
  file(RENAME ${unpacked} ${folder})
  file(REMOVE_RECURSE ${folder}.unpacking)
  file(WRITE ${folder}.stamp "${stamp}")
endfunction()

# A library of headers alone, under the name that its own package gives it.
function(hedgerow_take_headers name include target alias)
  hedgerow_unpack(${name} folder "${include}/*")
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${folder}/${include})
  add_library(${alias} ALIAS ${target})
endfunction()

# Makes what the folders link of a library that was not found. <package> is Debian's name, for the error where nothing may be taken.
function(hedgerow_take name package)
  if(NOT HEDGEROW_FETCH)
    message(FATAL_ERROR "${name} was not found. Install what Debian calls ${package}, or let it be taken from a pinned archive: "
      "-DHEDGEROW_FETCH=ON (deploy/README.md, \"One prefix, without root\").")
  endif()
  # For the projects of others below: static, usable in shared libraries of ours, each file by itself, without their tests.
  set(BUILD_SHARED_LIBS OFF)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(CMAKE_UNITY_BUILD OFF)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  if(name STREQUAL "fmt")
    hedgerow_unpack(fmt folder CMakeLists.txt "include/*" "src/*" "support/cmake/*" README.rst ChangeLog.rst LICENSE.rst)
    add_subdirectory(${folder} ${CMAKE_BINARY_DIR}/archives/build/fmt EXCLUDE_FROM_ALL SYSTEM)
  elseif(name STREQUAL "CLI11")
    hedgerow_take_headers(CLI11 include hedgerow_cli11 CLI11::CLI11)
  elseif(name STREQUAL "nlohmann_json")
    hedgerow_take_headers(nlohmann_json include hedgerow_json nlohmann_json::nlohmann_json)
  elseif(name STREQUAL "toml++")
    hedgerow_unpack(toml++ folder "usr/include/toml++/*")
    set(TOMLPLUSPLUS_INCLUDE_DIR ${folder}/include PARENT_SCOPE)
  elseif(name STREQUAL "xxHash")
    hedgerow_unpack(xxHash folder xxhash.c xxhash.h)
    add_library(hedgerow_xxhash STATIC EXCLUDE_FROM_ALL ${folder}/xxhash.c)
    target_include_directories(hedgerow_xxhash SYSTEM PUBLIC ${folder})
    add_library(PkgConfig::xxhash ALIAS hedgerow_xxhash)
  elseif(name STREQUAL "Boost")
    hedgerow_unpack(Boost folder "usr/include/boost/*")
    set(Boost_INCLUDE_DIRS ${folder}/include PARENT_SCOPE)
  elseif(name STREQUAL "prometheus-cpp")
    hedgerow_unpack(prometheus-cpp folder CMakeLists.txt README.md LICENSE "cmake/*" "core/*")
    foreach(part ENABLE_PUSH ENABLE_PULL ENABLE_COMPRESSION ENABLE_TESTING GENERATE_PKGCONFIG)
      set(${part} OFF)
    endforeach()
    add_subdirectory(${folder} ${CMAKE_BINARY_DIR}/archives/build/prometheus-cpp EXCLUDE_FROM_ALL SYSTEM)
  elseif(name STREQUAL "chart.js")
    hedgerow_unpack(chart.js folder "usr/share/javascript/chart.js/chart.min.js")
    set(HEDGEROW_CHART_JS ${folder}/share/javascript/chart.js/chart.min.js PARENT_SCOPE)
  endif()
endfunction()

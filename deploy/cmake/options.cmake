# Compile options that are ours alone: warnings as errors and sanitizers, as INTERFACE targets that each of our
# libraries links PRIVATE, so that third-party code and users of our libraries never see them.
set(_false_in_gcc_12 -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
add_library(hedgerow_warnings INTERFACE)
target_compile_options(hedgerow_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wsign-conversion -Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>
  # GCC takes a .cpp file's own types for a header's once the file is included, as a unity build does.
  $<$<AND:$<BOOL:${CMAKE_UNITY_BUILD}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-subobject-linkage>
  # GCC 12 sees overlapping and endless copies in std::string's operator+ at -O3 that are not there (its bugs 105651, 105329).
  "$<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>,$<CONFIG:Release>>:${_false_in_gcc_12}>")

# The presets compile with -g1 (functions and lines for backtraces): full debug information cost a quarter of a file with JSON
# templates and a third of one with LibTorch's.

# Eight files of a target are compiled as one, which takes a third of the time: most of it goes into what the templates of JSON,
# CLI11 and LibTorch make anew in every file. So names in unnamed namespaces are unique within a batch, and where a new file moves
# the batches and two meet, one of them gets a better name. -DCMAKE_UNITY_BUILD=OFF compiles each file alone and shows an include
# that is missing, as the presets asan and tsan do for what they build.

# ccache and mold, where they are: the one keeps what was compiled, the other links faster. Not for a project
# that includes this one, which chooses its own. A launcher that is given (-DCMAKE_CXX_COMPILER_LAUNCHER=) stays.
if(PROJECT_IS_TOP_LEVEL)
  if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    find_program(HEDGEROW_CCACHE ccache)
    mark_as_advanced(HEDGEROW_CCACHE)
    if(HEDGEROW_CCACHE)
      foreach(language C CXX CUDA)
        set(CMAKE_${language}_COMPILER_LAUNCHER ${HEDGEROW_CCACHE})
      endforeach()
    else()
      message(STATUS "hedgerow: ccache not found: what was compiled before is compiled again")
    endif()
  endif()
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold HEDGEROW_LINKS_WITH_MOLD)  # GCC knows the name from 12 on
  if(HEDGEROW_LINKS_WITH_MOLD)
    string(APPEND CMAKE_EXE_LINKER_FLAGS " -fuse-ld=mold")
  else()
    message(STATUS "hedgerow: mold not found, or unknown to the compiler: its own linker links, slower")
  endif()
endif()

# The presets' ccache trusts the compiler's own list of headers (CCACHE_DEPEND): a file that is not in the cache is then not
# preprocessed first, only to look for it. That reaches the compiler by `cmake --build --preset`, not by `cmake --build build/cpu`.

if(HEDGEROW_SANITIZE)
  # Global on purpose: a sanitized object linked with an unsanitized one of ours reports nothing.
  add_compile_options(-fsanitize=${HEDGEROW_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HEDGEROW_SANITIZE})
endif()

# The library of one folder: hedgerow_<name>, alias hedgerow::<name>; headers are included by their path from the top.
function(hedgerow_library name)
  add_library(hedgerow_${name} STATIC ${ARGN})
  add_library(hedgerow::${name} ALIAS hedgerow_${name})
  target_include_directories(hedgerow_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(hedgerow_${name} PRIVATE hedgerow_warnings)
endfunction()

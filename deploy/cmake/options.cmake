# Compile options that are ours alone: warnings as errors and sanitizers, as INTERFACE targets that each of our
# libraries links PRIVATE, so that third-party code and users of our libraries never see them.
add_library(hedgerow_warnings INTERFACE)
target_compile_options(hedgerow_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wsign-conversion -Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>
  # GCC 12 sees overlapping copies in std::string's operator+ at -O3 that are not there (its bug 105651).
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>,$<CONFIG:Release>>:-Wno-restrict>)

# The presets compile with -g1 (functions and lines for backtraces): full debug information cost a quarter of a file with JSON
# templates and a third of one with LibTorch's.
# Eight files of a target are compiled as one, which takes a third of the time: most of it goes into what the templates of JSON,
# CLI11 and LibTorch make anew in every file. So names in unnamed namespaces are unique within a target. The presets asan and
# tsan compile each file alone and show an include that is missing.
if(CMAKE_UNITY_BUILD)
  # GCC takes a file's own types in its own classes for a header's, once the file is included.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()

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

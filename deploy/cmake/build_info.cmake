# Run at build time: cmake -DSOURCE_DIR=.. -DHEDGEROW_VERSION=.. -DHAVE_CUDA=.. -DOUTPUT=.. -P build_info.cmake
# Rewrites OUTPUT only when the commit (or its cleanness) changed, so that nothing is relinked without need.
set(HEDGEROW_GIT_HASH unknown)
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --abbrev=12 --dirty --exclude=*
  OUTPUT_VARIABLE _hash RESULT_VARIABLE _failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT _failed)
  set(HEDGEROW_GIT_HASH ${_hash})
else()
  # No repository, but perhaps the files of `git archive`, which writes its commit into this one.
  file(STRINGS ${SOURCE_DIR}/deploy/cmake/commit.txt _commit REGEX "^[0-9a-f]+$")
  if(_commit)
    string(SUBSTRING ${_commit} 0 12 HEDGEROW_GIT_HASH)
  endif()
endif()
if(HAVE_CUDA)
  set(HEDGEROW_HAS_CUDA true)
else()
  set(HEDGEROW_HAS_CUDA false)
endif()
configure_file(${SOURCE_DIR}/storage/base/build_info.cpp.in ${OUTPUT} @ONLY)

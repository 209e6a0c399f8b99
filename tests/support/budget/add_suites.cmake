# Run after a GoogleTest binary is linked: writes a file for ctest with one entry a suite. One process a suite and not one a test:
# linking LibTorch costs every process of a test binary up to half a second before it begins.
#   cmake -D PROGRAM=.. -D OUT=.. -D PREFIX=.. -D LABEL=.. -D TIMEOUT=.. -D ENVIRONMENT=.. -D DIRECTORY=.. -P add_suites.cmake
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE status TIMEOUT 60
  WORKING_DIRECTORY ${DIRECTORY})
if(NOT status EQUAL 0)
  file(REMOVE ${OUT} ${PROGRAM})  # so that the next build links it again and says this again
  message(FATAL_ERROR "${PROGRAM} --gtest_list_tests ended with ${status}\n${listed}")
endif()
# A suite's line is "Suite." with no space before it; its tests' lines begin with two.
string(REGEX MATCHALL "(^|\n)[A-Za-z_][^ \n]*\\.( +#[^\n]*)?(\n)" lines "${listed}")
set(entries "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^\n*([^ \n]*)\\..*$" "\\1" suite "${line}")
  # Skipped: each of its tests was, and none failed, which GoogleTest would say last.
  string(APPEND entries "add_test([==[${PREFIX}${suite}]==] [==[${PROGRAM}]==] [==[--gtest_filter=${suite}.*]==])
set_tests_properties([==[${PREFIX}${suite}]==] PROPERTIES LABELS [==[${LABEL}]==] TIMEOUT ${TIMEOUT} WORKING_DIRECTORY [==[${DIRECTORY}]==]
  ENVIRONMENT [==[${ENVIRONMENT}]==] SKIP_REGULAR_EXPRESSION [==[\\[  PASSED  \\] 0 tests\\.
(\\[  SKIPPED \\] [^
]*
)+$]==])\n")
endforeach()
if(NOT entries)
  message(FATAL_ERROR "${PROGRAM} lists no test")
endif()
file(WRITE ${OUT} "${entries}")

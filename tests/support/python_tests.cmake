# hedgerow_python_test(<module> LABEL e2e [TIMEOUT s] [COST n] [ALONE]): a unittest module of this folder as one ctest entry, run by the
# interpreter that deploy/setup made. HEDGEROW_BIN names the folder of the built programs. Of those of label e2e
# two run side by side on two cores, for none keeps both busy; ALONE: it measures times, or fills the machine by itself. COST: seconds
# of a core, where they are many: these begin first.
get_filename_component(_hedgerow_venv ${HEDGEROW_TORCH_DIR}/../../../.. ABSOLUTE)
set(HEDGEROW_PYTHON ${_hedgerow_venv}/bin/python CACHE FILEPATH "Python with the packages that deploy/setup installs")
set(HEDGEROW_RUN_MODULE ${CMAKE_CURRENT_LIST_DIR}/run_module.py CACHE INTERNAL "")

function(hedgerow_python_test module)
  cmake_parse_arguments(ARG "ALONE" "LABEL;TIMEOUT;COST" "" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(name ${folder}.${module})
  add_test(NAME ${name} COMMAND ${HEDGEROW_PYTHON} ${HEDGEROW_RUN_MODULE} ${CMAKE_CURRENT_SOURCE_DIR}/${module}.py)
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "OMP_NUM_THREADS=1;PYTHONDONTWRITEBYTECODE=1;HEDGEROW_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  if(ARG_ALONE)
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
endfunction()

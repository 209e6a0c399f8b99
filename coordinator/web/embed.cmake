# Writes web_assets.cpp, which holds the page's files as the assembler includes them: hedgerow serves them from itself.
# Chart.js is the system's (Debian's libjs-chart.js).
find_file(HEDGEROW_CHART_JS chart.min.js
  PATHS /usr/share/javascript/chart.js /usr/share/nodejs/chart.js/dist
  DOC "Chart.js 3, minified, with which the run's page draws its curves" NO_DEFAULT_PATH)
if(NOT HEDGEROW_CHART_JS)
  message(FATAL_ERROR "chart.min.js was not found; install libjs-chart.js, name it (-DHEDGEROW_CHART_JS=FILE), or build "
    "without the page (-DHEDGEROW_WEB=OFF)")
endif()

set(_page ${CMAKE_CURRENT_SOURCE_DIR}/web/page)
set(_files ${HEDGEROW_CHART_JS})
set(_names chart.js)
foreach(_name index.html page.css base.js canvases.js curves.js panels.js page.js)
  list(APPEND _files ${_page}/${_name})
  list(APPEND _names ${_name})
endforeach()
set(_assembler "")
set(_declarations "")
set(_entries "")
foreach(_file _name IN ZIP_LISTS _files _names)
  cmake_path(GET _name EXTENSION LAST_ONLY _type)
  string(REPLACE "." "" _type ${_type})
  string(REPLACE "js" "javascript" _type ${_type})
  string(MAKE_C_IDENTIFIER "hedgerow_asset_${_name}" _symbol)
  string(APPEND _assembler
    "asm(\".section .rodata\\n.balign 16\\n.global ${_symbol}\\n${_symbol}:\\n.incbin \\\"${_file}\\\"\\n\"\n"
    "    \".global ${_symbol}_end\\n${_symbol}_end:\\n.byte 0\\n.text\\n\");\n")
  string(APPEND _declarations "extern \"C\" const char ${_symbol}[], ${_symbol}_end[];\n")
  string(APPEND _entries
    "      {\"/${_name}\", \"text/${_type}; charset=utf-8\", {${_symbol}, static_cast<std::size_t>(${_symbol}_end - ${_symbol})}},\n")
endforeach()
set(_output ${CMAKE_CURRENT_BINARY_DIR}/web_assets.cpp)
file(CONFIGURE OUTPUT ${_output} @ONLY CONTENT [[// Made by coordinator/web/embed.cmake.
#include <array>

#include "coordinator/web/assets.hpp"

@_assembler@
@_declarations@
namespace hedgerow::coordinator {

std::span<const Asset> web_assets() {
  static const std::array assets = std::to_array<Asset>({
@_entries@  });
  return assets;
}

}  // namespace hedgerow::coordinator
]])
# By itself: its assembler text leaves the section that the rest of a unit is in.
set_source_files_properties(${_output} PROPERTIES OBJECT_DEPENDS "${_files}" SKIP_UNITY_BUILD_INCLUSION ON)
target_sources(hedgerow_coordinator PRIVATE ${_output})

# hocket_embed(<module> <subfolder>): every .js, .css and .html file of src/<module>/<subfolder> becomes
# a string literal for the module's sources: `constexpr std::string_view kText =`, then, on a line of
# its own, #include "<module>/<subfolder>/<file>.inc", which lies in the build folder. A file's head,
# the comments before its first blank line, is for readers of the source and stays out of the literal.
# Editing a file configures again by itself.
function(hocket_embed module subfolder)
  if(NOT TARGET hocket_${module})
    return()
  endif()
  set(folder ${module}/${subfolder})
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.js
    ${CMAKE_SOURCE_DIR}/src/${folder}/*.css ${CMAKE_SOURCE_DIR}/src/${folder}/*.html)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  foreach(path ${files})
    get_filename_component(name ${path} NAME)
    file(READ ${path} text)
    string(FIND "${text}" "\n\n" head)
    if(head EQUAL -1)
      message(FATAL_ERROR "${path}: no blank line after the comments at its head")
    endif()
    math(EXPR begin "${head} + 2")
    string(SUBSTRING "${text}" ${begin} -1 text)
    string(FIND "${text}" ")embed\"" end_mark)
    string(LENGTH "${text}" bytes)
    if(NOT end_mark EQUAL -1 OR bytes GREATER 65000)
      # 65,536 characters are what every C++ compiler must take in one literal.
      message(FATAL_ERROR "${path}: cannot be one string literal: it holds )embed\" or has "
        "${bytes} bytes (at most 65000)")
    endif()
    set(out ${CMAKE_BINARY_DIR}/generated/${folder}/${name}.inc)
    file(WRITE ${out}.new "R\"embed(${text})embed\"\n")
    file(COPY_FILE ${out}.new ${out} ONLY_IF_DIFFERENT)
    file(REMOVE ${out}.new)
  endforeach()
  target_include_directories(hocket_${module} PRIVATE ${CMAKE_BINARY_DIR}/generated)
endfunction()

# hocket_embed_file(<module> <path>): one file of the repository, whole, as the literal
# #include "<module>/<name of the file>.inc".
function(hocket_embed_file module path)
  if(NOT TARGET hocket_${module})
    return()
  endif()
  get_filename_component(name ${path} NAME)
  file(READ ${CMAKE_SOURCE_DIR}/${path} text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${path})
  set(out ${CMAKE_BINARY_DIR}/generated/${module}/${name}.inc)
  file(WRITE ${out}.new "R\"embed(${text})embed\"\n")
  file(COPY_FILE ${out}.new ${out} ONLY_IF_DIFFERENT)
  file(REMOVE ${out}.new)
  target_include_directories(hocket_${module} PRIVATE ${CMAKE_BINARY_DIR}/generated)
endfunction()

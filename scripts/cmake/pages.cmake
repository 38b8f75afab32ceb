# Writes src/pages/page.css and page.js as string literals: OUT from FOLDER, the root of the sources. A literal may be too
# long for a compiler, so each line is one.
set(text "#include \"pages/assets.h\"\n\nnamespace tessera::pages {\n\n")
foreach(asset kStyle:page.css kScript:page.js)
  string(REPLACE ":" ";" asset ${asset})
  list(GET asset 0 name)
  list(GET asset 1 file)
  file(READ ${FOLDER}/src/pages/${file} content)
  string(REPLACE "\n" "\n)tessera\"\nR\"tessera(" content "${content}")
  string(APPEND text "const char* const ${name} = R\"tessera(${content})tessera\";\n\n")
endforeach()
file(WRITE ${OUT} "${text}}  // namespace tessera::pages\n")

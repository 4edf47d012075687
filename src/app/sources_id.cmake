# cmake -D root=<project> -D out=<file> -P sources_id.cmake
# Writes the definition of `brume::app::sources_id`: the start of a hash of all sources and their names.
file(GLOB_RECURSE sources RELATIVE ${root} ${root}/src/*.cpp ${root}/inc/*.hpp ${root}/src/*.hpp)
list(SORT sources)
set(hashes "")
foreach(source IN LISTS sources)
  file(SHA256 ${root}/${source} hash)
  string(APPEND hashes "${source} ${hash}\n")
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 16 id)
file(WRITE ${out} "namespace brume::app {
extern const char sources_id[];
const char sources_id[] = \"${id}\";
}  // namespace brume::app
")

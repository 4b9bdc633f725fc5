// For fuzz targets that link a library which another compiler made: nlohmann's ordered_map has 32
// bytes with Clang 14 and 24 with GCC 12 ([[no_unique_address]]), so the size that one allocates is
// not the one that the other frees.
extern "C" const char* __asan_default_options() {  // NOLINT: the name is AddressSanitizer's
  return "new_delete_type_mismatch=0";
}

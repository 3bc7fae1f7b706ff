#include "tutti/backends/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <stdlib.h>

namespace tutti {

namespace {

// Makes NCCL connect the ranks when a communicator is made, and not in its first operation. For a
// connection NCCL pins memory. CUDA may delay that while a thread of the process copies unpinned
// memory. Such a copy may wait on a stream (Work::wait_on) for that first operation, which would be
// a deadlock. If the user has set the variable, its value stays.
void connect_early() { ::setenv("NCCL_RUNTIME_CONNECT", "0", 0); }

}  // namespace

std::string text_of_version(int version) {
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

NcclLibrary NcclLibrary::load(const std::string& file) {
  connect_early();
  const std::string name = file.empty() ? "libnccl.so.2" : file;
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    throw Error(ErrorCode::unavailable,
                fmt::format("NCCL cannot be loaded ({}); install libnccl2, put its folder into "
                            "LD_LIBRARY_PATH or its file into TUTTI_BACKEND_LIBRARY",
                            why ? why : "no reason given"));
  }
  NcclLibrary library;
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    return function != nullptr;
  };
  if (find(library.ncclGetVersion, "ncclGetVersion")) library.ncclGetVersion(&library.version);
  if (library.version < kOldest)
    throw Error(
        ErrorCode::version,
        fmt::format("{} is NCCL {}, but backend nccl needs {} or later; install a newer one", name,
                    text_of_version(library.version), text_of_version(kOldest)));
#define TUTTI_NCCL_FIND(symbol)                                                                 \
  if (!find(library.symbol, #symbol))                                                           \
    throw Error(ErrorCode::unavailable,                                                         \
                fmt::format("{} says that it is NCCL {} but has no {}; install it again", name, \
                            text_of_version(library.version), #symbol));
  TUTTI_NCCL_FUNCTIONS(TUTTI_NCCL_FIND)
#undef TUTTI_NCCL_FIND
#define TUTTI_NCCL_TRY(symbol) find(library.symbol, #symbol);
  TUTTI_NCCL_LATER_FUNCTIONS(TUTTI_NCCL_TRY)
#undef TUTTI_NCCL_TRY
  return library;
}

std::string NcclLibrary::version_text() const { return text_of_version(version); }

std::string NcclLibrary::describe(ncclResult_t result, ncclComm_t comm) const {
  const char* what = ncclGetErrorString(result);
  const char* last = ncclGetLastError(comm);
  return last != nullptr && *last != '\0' ? fmt::format("{}: {}", what, last) : what;
}

}  // namespace tutti

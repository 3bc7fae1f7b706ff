#include "tutti/base/plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tutti/base/error.h"

namespace tutti {

namespace fs = std::filesystem;

namespace {

// The loader maps the file, so a truncated file would end the process by a signal. Therefore the
// file is checked first.
void check_whole(const std::string& file) {
  const auto damaged = [&](std::string_view what) {
    return Error(ErrorCode::corrupt_data,
                 fmt::format("{} {}; install it again, or remove it", file, what));
  };
  std::ifstream stream(file, std::ios::binary | std::ios::ate);
  if (!stream)
    throw Error(ErrorCode::unavailable,
                fmt::format("{} cannot be read ({})", file, std::strerror(errno)));
  const auto size = static_cast<uint64_t>(stream.tellg());
  const auto read = [&](uint64_t at, void* into, uint64_t bytes) {
    if (at > size || bytes > size - at) return false;
    stream.seekg(static_cast<std::streamoff>(at));
    return static_cast<bool>(
        stream.read(static_cast<char*>(into), static_cast<std::streamsize>(bytes)));
  };
  Elf64_Ehdr header;
  if (!read(0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr))
    throw damaged("is not a shared library for this machine");
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    if (!read(header.e_phoff + i * sizeof part, &part, sizeof part) || part.p_offset > size ||
        part.p_filesz > size - part.p_offset)
      throw damaged("is damaged: it was cut short");
  }
}

}  // namespace

std::string library_folder() {
  Dl_info info{};
  std::error_code status;
  if (::dladdr(reinterpret_cast<const void*>(&library_folder), &info) == 0 ||
      info.dli_fname == nullptr)
    return {};
  return fs::canonical(info.dli_fname, status).parent_path().string();
}

std::string plugin_folder() {
  const auto library = library_folder();
  std::error_code status;
  auto own = library + "/tutti-" TUTTI_SOVERSION;
  return fs::is_directory(own, status) ? own : library;
}

const void* load_plugin_record(const std::string& file, const PluginKind& kind) {
  check_whole(file);
  // The library is never closed: its threads and exit handlers may outlive all its users.
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw Error(ErrorCode::unavailable,
                fmt::format("{} cannot be loaded ({}); install what it needs, or {}", file,
                            why ? why : "no reason given", kind.instead));
  }
  const auto* record = ::dlsym(library, std::string(kind.symbol).c_str());
  if (record == nullptr)
    throw Error(ErrorCode::corrupt_data, fmt::format("{} is not a {}: it has no {}; remove it",
                                                     file, kind.noun, kind.symbol));
  uint32_t abi = 0;
  std::memcpy(&abi, record, sizeof abi);
  if (abi != kind.abi)
    throw Error(ErrorCode::version, fmt::format("{} was built for plugin ABI {}, this library has "
                                                "{}; build it again against this version",
                                                file, abi, kind.abi));
  return record;
}

}  // namespace tutti

// The harnesses as a program of libFuzzer. `fuzz_parsers --harness=NAME --seeds=FOLDER` writes the
// seeds of that harness. Without --seeds the other arguments go to libFuzzer, which ignores those
// that begin with two dashes. `./dev fuzz` does both.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/fuzz/harness.h"

namespace {

using tutti::fuzz::Harness;

uint64_t accepted = 0, refused = 0;

const Harness* chosen = nullptr;

// A harness whose inputs are all accepted or all refused tests nothing. Its exit code reports that.
void report() {
  std::fprintf(stderr, "inputs: %llu accepted, %llu refused\n",
               static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(refused));
  if (accepted == 0 || refused == 0) std::_Exit(3);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const auto argument = [&](std::string_view name) {
    for (int i = 1; i < *argc; ++i)
      if (const std::string_view text = (*argv)[i]; text.starts_with(name))
        return std::string(text.substr(name.size()));
    return std::string();
  };
  const auto name = argument("--harness="), folder = argument("--seeds=");
  for (const auto& harness : tutti::fuzz::harnesses())
    if (harness.name == name) chosen = &harness;
  if (chosen == nullptr) {
    std::fprintf(stderr, "--harness=%s: there is none of this name\n", name.c_str());
    std::_Exit(2);
  }
  if (!folder.empty()) {
    int number = 0;
    for (const auto& seed : chosen->seeds())
      std::ofstream(folder + "/seed" + std::to_string(number++)) << seed;
    std::_Exit(0);
  }
  std::atexit(report);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (size > chosen->longest) return -1;  // keeps it out of the corpus
  ++(tutti::fuzz::accepts(*chosen, input) ? accepted : refused);
  return 0;
}

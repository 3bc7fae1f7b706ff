// A rank that reads the job's store: it waits for a key and prints its value.
#include <cstdio>
#include <string>

#include "tutti/base/error.h"
#include "tutti/core/settings/options.h"

int main(int count, char** words) {
  try {
    const auto options = tutti::Options::from_environment();
    const auto colon = options.store.rfind(':');
    const auto store = tutti::connect_tcp_store(options.store.substr(6, colon - 6),
                                                std::stoi(options.store.substr(colon + 1)),
                                                options.secret, tutti::Deadline::after(20));
    const std::string key = count > 1 ? words[1] : "";
    std::printf("%s\n", store->get(key, tutti::Deadline::after(20)).c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

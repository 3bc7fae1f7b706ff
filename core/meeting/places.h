#pragma once

#include <string>

#include "tutti/backends/backend.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// Returns where this process runs, and as which rank it was launched.
Place own_place(const Options& options, const LaunchedRank& launched);

/// A Place as a rank writes it to the store for an attempt. `call` tells the attempts of one
/// process apart.
struct PlaceRecord {
  Place place;
  int64_t call = 0;
};
std::string encode_place(const PlaceRecord& record);
/// Throws Error(corrupt_data) naming `rank` if the text is not such a record.
PlaceRecord decode_place(int rank, const std::string& text);

/// Returns the library version and the settings that must be equal on all ranks, as one text.
std::string encode_terms(const Options& options);
/// Compares another rank's terms with this rank's. Throws Error(version | mismatch) that names both
/// ranks if they differ.
void check_terms(const std::string& theirs, const Options& options);

}  // namespace tutti

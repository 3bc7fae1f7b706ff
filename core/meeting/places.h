#pragma once

#include <string>

#include "tutti/backends/backend.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// Returns where this process runs, and the rank that its launcher gave to it.
Place own_place(const Options& options, const LaunchedRank& launched);

/// A Place in the form that a rank writes to the store for an attempt. `call` is an id that
/// distinguishes the attempts of one process.
struct PlaceRecord {
  Place place;
  int64_t call = 0;
};
std::string encode_place(const PlaceRecord& record);
/// Decodes a record. Throws Error(corrupt_data) that names `rank` if the text is not a record.
PlaceRecord decode_place(int rank, const std::string& text);

/// Encodes as one text the library version and the settings that must be equal on all ranks.
std::string encode_terms(const Options& options);
/// Compares another rank's text of encode_terms() with this rank's. Throws Error(version |
/// mismatch) that names both ranks if they differ.
void check_terms(const std::string& theirs, const Options& options);

}  // namespace tutti

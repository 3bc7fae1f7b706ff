#pragma once

#include <string>
#include <string_view>

#include "tutti/backends/backend.h"
#include "tutti/core/launch/launch.h"
#include "tutti/core/settings/options.h"

namespace tutti {

/// Reads every TUTTI_ variable of `environment` into its field, and records `source` as the field's
/// source. Throws Error(invalid_argument) for an invalid value and for an unknown TUTTI_ variable.
void read_settings(const Environment& environment, Options& options,
                   const std::string& source = "environment");

/// Reads the variables like read_settings(), but only into the fields that are not set.
void fill_settings(const Environment& environment, Options& options);

/// Returns the settings that backends read with Context::setting().
Settings backend_settings(const Options& options);

/// Returns the settings that must be equal on all ranks, because they change what ranks send:
/// "TUTTI_BACKEND=auto TUTTI_ALGORITHMS= ...".
std::string agreed_settings(const Options& options);

/// Returns whether the field of this variable differs from its default or has an entry in
/// `sources`.
bool is_set(const Options& options, std::string_view variable);

}  // namespace tutti

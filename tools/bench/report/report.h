#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench/report/plot.h"
#include "tools/bench/report/record.h"
#include "tools/bench/workload/settings.h"

namespace tutti::bench {

/// Writes rank 0's figures: the table for users, the records for programs, and the plot.
class Report {
 public:
  /// Opens the files for appending. Throws Error(invalid_argument) if one cannot be written. The
  /// table goes to standard error if the records go to standard output. Ranks other than 0 write
  /// nothing.
  Report(const Settings& settings, bool silent);
  /// Throws the constructor's errors. The launcher calls it once, before it starts the ranks.
  static void check_files(const Settings& settings) { const Report report(settings, false); }

  void print(const std::string& text);
  void add(const Record& record);
  /// Draws the plot of the records added so far, if a plot was requested.
  void draw(const std::string& title);

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, CloseFile>;
  static File open(const char* option, const std::string& path);

  const bool silent_;
  std::FILE* table_;
  File json_, csv_, plot_;
  bool csv_heading_due_ = true;
  bool plot_is_file_ = false;
  std::vector<Series> series_;
};

}  // namespace tutti::bench

// The targets of links and paths on the pages must exist.
#include <gtest/gtest.h>

#include <iostream>
#include <regex>

#include "tests/docs/pages.h"

namespace tutti::docs {
namespace {

namespace fs = std::filesystem;

const Page* page_at(const fs::path& path) {
  for (const auto& page : pages())
    if (fs::path(page.path) == path) return &page;
  return nullptr;
}

TEST(Docs, EveryLinkAndAnchorLeadsSomewhere) {
  static const std::regex link(R"(\]\(([^)\s]+)\))");
  size_t links = 0;
  for (const auto& page : pages())
    for (std::sregex_iterator at(page.prose.begin(), page.prose.end(), link), end; at != end;
         ++at) {
      const std::string target = (*at)[1];
      if (target.starts_with("http")) continue;  // no test uses the network
      ++links;
      const auto hash = target.find('#');
      const auto file = target.substr(0, hash);
      const auto path = file.empty()
                            ? fs::path(page.path)
                            : (fs::path(page.path).parent_path() / file).lexically_normal();
      EXPECT_TRUE(fs::exists(root() / path)) << page.path << " links to " << target;
      if (hash == target.npos) continue;
      const auto* there = page_at(path);
      EXPECT_TRUE(there != nullptr && there->anchors().count(target.substr(hash + 1)) > 0)
          << page.path << " links to " << target << ", which is no heading there";
    }
  EXPECT_GT(links, 20U);
}

TEST(Docs, TheIndexNamesEveryPage) {
  const auto* index = page_at("docs/README.md");
  ASSERT_NE(index, nullptr);
  std::string missing;
  for (const auto& page : pages()) {
    if (!page.path.starts_with("docs/") || page.path == index->path) continue;
    const auto name = fs::path(page.path).filename().string();
    if (index->text.find("(" + name + ")") == std::string::npos) missing += " " + name;
  }
  // This is not a failure: a page may be added before its line in the index.
  if (!missing.empty()) std::cout << "docs/README.md does not link to" << missing << "\n";
}

TEST(Docs, EveryPathThatAPageNamesExists) {
  static const std::regex path("^([A-Za-z_]+)/[A-Za-z0-9_./-]*$");
  size_t paths = 0;
  for (const auto& page : pages())
    for (const auto& span : page.spans()) {
      std::smatch match;
      if (!std::regex_match(span, match, path) || match[1] == "build") continue;
      if (!fs::is_directory(root() / match[1].str())) continue;  // such as ucx/ring
      ++paths;
      EXPECT_TRUE(fs::exists(root() / span)) << page.path << " names " << span;
    }
  EXPECT_GT(paths, 50U);
}

}  // namespace
}  // namespace tutti::docs

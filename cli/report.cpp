// lowtide report: a snapshot as one page that needs no network.

#include <cstdio>

#include "cli/verbs.h"
#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/evidence/snapshot_reader.h"
#include "src/report/redaction.h"
#include "src/report/snapshot_page.h"
#include "src/report/whole_file.h"

namespace lowtide {
namespace {

int run(const Arguments& arguments) {
  Snapshot snapshot = read_snapshot(arguments.words()[0]);
  if (arguments.has("redact")) redact(snapshot);
  const std::string path = arguments.text("out");
  const std::string page = snapshot_page(snapshot);
  write_file(path, page);
  std::printf("%s: %s. Open it in a browser.\n", path.c_str(), format_bytes(page.size()).c_str());
  return kDone;
}

}  // namespace

Verb report_verb() {
  Flag out{"out", "PAGE", "where to write it", "report.html"};
  out.letter = "o";
  return {.name = "report",
          .summary = "write a snapshot as a page to look at, without a network",
          .words = {{"FILE", "a snapshot, as torch.cuda.memory._dump_snapshot writes it"}},
          .flags = {out, {"redact", "", "leave folders and user names out", ""}},
          .examples = {"lowtide report snapshot.pickle -o report.html",
                       "lowtide report snapshot.pickle --redact -o to_share.html"},
          .run = run};
}

}  // namespace lowtide

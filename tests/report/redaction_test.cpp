#include "src/report/redaction.h"

#include <doctest/doctest.h>

#include "src/base/json.h"
#include "src/evidence/snapshot_analysis.h"
#include "src/report/snapshot_page.h"
#include "src/report/snapshot_report.h"
#include "tests/evidence/made_snapshots.h"

using namespace lowtide;  // the tests of one header

TEST_CASE("paths, hosts, addresses and people go, what helps stays") {
  Redactor redactor;
  CHECK(redactor.text("/home/ann/exp/train.py:12 in step") == "<path>/train.py:12 in step");
  CHECK(redactor.text("~/exp/train.py") == "<path>/train.py");
  CHECK(redactor.text("C:\\Users\\ann\\train.py") == "<path>/train.py");
  CHECK(redactor.text("/opt/v/lib/python3.11/site-packages/torch/optim/adam.py") ==
        "<path>/site-packages/torch/optim/adam.py");
  CHECK(redactor.text("ann@node7.lab.example.org says") == "<user>@<host> says");
  CHECK(redactor.text("on gpu-node7.lab.org.") == "on <host>.");
  CHECK(redactor.text("node107: task 0") == "<host>: task 0");
  CHECK(redactor.text("ip=10.0.0.1)") == "ip=<address>)");
  CHECK(redactor.text("/dev/shm is full") == "/dev/shm is full");
  CHECK(redactor.text("1.50 GiB, torch 2.13.0, 5/7, and/or") ==
        "1.50 GiB, torch 2.13.0, 5/7, and/or");
  CHECK(redactor.text("(https://pytorch.org/docs/stable/notes/cuda.html)") ==
        "(https://pytorch.org/docs/stable/notes/cuda.html)");
  CHECK(redactor.text("") == "");
}

TEST_CASE("a user's name in a path is replaced wherever else it stands") {
  Redactor redactor;
  redactor.learn(std::string_view("/home/annabel/exp/train.py"));
  CHECK(redactor.text("job of annabel failed, annabella did not") ==
        "job of <user> failed, annabella did not");
}

TEST_CASE("a folder that only looks like a home is none, and names are learned from JSON") {
  Redactor redactor;
  Json value = Json::object();
  value["a"].push_back("C:\\Users\\annabel\\x.py");
  value["b"] = "src/home/logs/x";
  redactor.learn(value);
  CHECK(redactor.text("annabel and logs") == "<user> and logs");
}

TEST_CASE("JSON keeps its keys and numbers") {
  Redactor redactor;
  Json value = Json::object();
  value["/home/ann/x"] = "/home/ann/x";
  value["n"] = 3;
  value["list"].push_back("/home/ann/y");
  CHECK(to_text(redactor.json(value)) == R"({"/home/ann/x":"<path>/x","n":3,"list":["<path>/y"]})");
}

TEST_CASE("a path keeps its file, and its place in an installed package") {
  Redactor redactor;
  CHECK(redactor.path("/home/ann/job/model.py") == "<path>/model.py");
  CHECK(redactor.path("job/model.py") == "<path>/model.py");
  CHECK(redactor.path("C:\\Users\\ann\\job\\model.py") == "<path>/model.py");
  CHECK(redactor.path("/home/ann/.venv/lib/python3.12/site-packages/torch/nn/functional.py") ==
        "<path>/site-packages/torch/nn/functional.py");
  CHECK(redactor.path("/tmp/torchinductor_ann/ab/cab.py") == "<path>/torchinductor/ab/cab.py");
  CHECK(redactor.path("/tmp/torchinductor_ann") == "<path>/torchinductor");
  CHECK(redactor.path("??") == "??");
  CHECK(redactor.path("Optimizer.step#SGD.step") == "Optimizer.step#SGD.step");
}

TEST_CASE("a redacted snapshot says nothing of its folders and people, and the same numbers") {
  Snapshot snapshot = read_made(small_snapshot().pickle(Dialect::kPython, 4, {}));
  snapshot.name = "/home/ann/dumps/made.pickle";
  snapshot.settings.configuration = "on node17.lab.org by ann";
  const SnapshotAnalysis before = analyse(snapshot);
  CHECK(to_text(snapshot_json(snapshot, before)).find("ann") != std::string::npos);
  CHECK(snapshot_page(snapshot).find("node17") != std::string::npos);
  redact(snapshot);
  const SnapshotAnalysis after = analyse(snapshot);
  const std::string json = to_text(snapshot_json(snapshot, after));
  for (const char* secret : {"/ann", "by ann", "node17", "/home", "dumps"}) {
    CAPTURE(secret);
    CHECK(json.find(secret) == std::string::npos);
    CHECK(snapshot_page(snapshot).find(secret) == std::string::npos);
  }
  CHECK(after.devices[0].peak.bytes == before.devices[0].peak.bytes);
  REQUIRE(after.devices[0].user_lines.size() == before.devices[0].user_lines.size());
  CHECK(after.devices[0].user_lines[0].line == before.devices[0].user_lines[0].line);
}

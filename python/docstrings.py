"""python docstrings.py OUT HEADER...: a table of C++ from names of functions to what their headers say of them."""
import pathlib
import re
import sys

found = {}
for header in sys.argv[2:]:
    comment, last = [], []
    for line in pathlib.Path(header).read_text().splitlines():
        said = re.match(r"\s*/// ?(.*)", line)
        declared = re.match(r"\s*(?:Tensor|TopK|std::vector<Tensor>|IterationResults) (\w+)\(", line)
        if said:
            comment.append(said.group(1))
        elif declared:
            # A comment is of the functions that follow it without another line between.
            last = comment or last
            if last:
                found.setdefault(declared.group(1), " ".join(last))
            comment = []
        elif not line.startswith(" "):
            comment, last = [], []
rows = "\n".join('    {"%s", R"doc(%s)doc"},' % item for item in sorted(found.items()))
pathlib.Path(sys.argv[1]).write_text(f"static const std::map<std::string, const char*> docs = {{\n{rows}\n}};\n")

"""The pages of the C++ API: one for each public header, made of what Doxygen reads in it (XML), in the header's own order.

Doxygen finds declarations, comments and what they refer to; its own pages put all functions of a namespace on one.
"""
import html
import pathlib
import re
import subprocess
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "build/docs/doxygen"
OPTIONS = """
QUIET = YES
WARNINGS = NO
INPUT = include
RECURSIVE = YES
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
JAVADOC_AUTOBRIEF = YES
MACRO_EXPANSION = YES
STRIP_FROM_PATH = include
ALIASES = "params=\\@params" "grads=\\@grads" "state=\\@state"
OUTPUT_DIRECTORY = build/docs/doxygen
"""
# Headers in the order in which one meets them; others follow.
ORDER = ["tessera", "dim", "dtype", "array", "graph", "ops", "operators", "loops", "nn", "nn_layers", "nn_attention", "nn_moe", "optim",
         "mesh", "cluster", "session", "data", "checkpoint", "safetensors", "explain", "inspect", "trace", "storage", "plan", "machine",
         "simulate", "placement", "solver", "cli", "error", "op", "attrs", "host", "testing", "c"]


def escaped(text):
    text = html.escape(text, quote=False)
    return re.sub(r"([\\`*\[\]|])", r"\\\1", text)


class Item:
    """A declaration with its comment: a function with its overloads, a class, an enum, a type, a variable."""

    def __init__(self, kind, name, line, code, xml, members=()):
        self.kind, self.name, self.line, self.last_line = kind, name, line, line
        self.code, self.xml, self.members = [code], xml, list(members)
        self.names = [name]
        self.ids = [xml.get("id"), *(m.get("id") for m in members)]

    def title(self):
        names = list(dict.fromkeys(self.names))
        return ", ".join(names) if len(names) <= 4 else f"{self.name} and {len(names) - 1} more"

    def is_documented(self):
        return self.xml is not None and any("".join(self.xml.find(k).itertext()).strip()
                                            for k in ("briefdescription", "detaileddescription") if self.xml.find(k) is not None)


class Api:
    def __init__(self):
        OUT.mkdir(parents=True, exist_ok=True)
        subprocess.run(["doxygen", "-"], input=OPTIONS, text=True, cwd=ROOT, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.items = {}   # header -> items
        self.places = {}  # refid -> (header, anchor)
        for path in sorted((OUT / "xml").glob("*.xml")):
            for compound in ET.parse(path).getroot().iter("compounddef"):
                self.read(compound)
        for header, items in self.items.items():
            self.items[header] = self.joined(sorted(items, key=lambda i: i.line))
            self.places.update({id: (header, anchor(i.name)) for i in self.items[header] for id in i.ids})

    def read(self, compound):
        kind, name = compound.get("kind"), compound.findtext("compoundname")
        if "detail" in name or name.startswith("std"):
            return
        if kind == "namespace":
            for member in compound.iter("memberdef"):
                self.add(member)
        elif kind in ("class", "struct"):
            header, line = self.location(compound)
            if header is None:
                return
            public = [m for s in compound.findall("sectiondef") if s.get("kind").startswith("public") for m in s]
            members = sorted((m for m in public if m.tag == "memberdef"), key=lambda m: int(m.find("location").get("line")))
            bases = ", ".join("".join(b.itertext()) for b in compound.findall("basecompoundref"))
            short = re.sub(r"^tessera::", "", name)
            item = Item("class", short, line, f"{kind} {short}" + (f" : {bases}" if bases else "") + ";", compound, members)
            self.items.setdefault(header, []).append(item)

    def location(self, xml):
        place = xml.find("location")
        file = place.get("file", "") if place is not None else ""
        match = re.search(r"(?:^|/)tessera/(.*)\.h$", file)
        return (match.group(1), int(place.get("line", 0))) if match else (None, 0)

    def add(self, member):
        header, line = self.location(member)
        name, kind = member.findtext("name"), member.get("kind")
        if header is None or not name or name.startswith("@"):
            return
        self.items.setdefault(header, []).append(Item(kind, name, line, declaration(member), member))

    def joined(self, items):
        """What has no comment and comes next belongs to the item before: an overload, and what is declared alike."""
        result = []
        for item in items:
            before = result[-1] if result else None
            follows = before and item.kind == before.kind == "function" and not item.is_documented()
            near = before and item.line <= before.last_line + 3
            alike = before and item.code[0].replace(item.name, "") == before.code[-1].replace(before.names[-1], "")
            if follows and (item.name == before.name or (near and (alike or not before.is_documented()))):
                before.code += item.code
                before.ids += item.ids
                before.names += item.names
                before.last_line = item.line
            else:
                result.append(item)
        return result

    # ------------------------------------------------------------------------------------------------------------ text

    def prose(self, xml, here):
        """The comment of a declaration as Markdown."""
        parts = []
        for name in ("briefdescription", "detaileddescription"):
            part = xml.find(name) if xml is not None else None
            for block in part if part is not None else []:
                text = self.block(block, here).strip()
                if text:
                    parts.append(text)
        return "\n\n".join(parts)

    def block(self, xml, here):
        if xml.tag == "itemizedlist":
            return "\n".join("- " + self.block(i, here).strip().replace("\n", "\n  ") for i in xml)
        if xml.tag == "verbatim":
            return f"\n\n```text\n{xml.text}\n```\n\n"
        return "".join([escaped(xml.text or ""), *(self.inline(child, here) for child in xml)])

    def inline(self, xml, here):
        tail, text = escaped(xml.tail or ""), "".join(xml.itertext())
        if xml.tag == "computeroutput":
            return f"`{text}`{tail}"
        if xml.tag == "ref" and xml.get("refid") in self.places:
            header, to = self.places[xml.get("refid")]
            return f"[{escaped(text)}]({relative(here, header)}#{to}){tail}"
        if xml.tag in ("itemizedlist", "verbatim"):
            return f"\n\n{self.block(xml, here)}\n\n{tail}"
        if xml.tag == "linebreak":
            return "\n" + tail
        if xml.tag in ("para", "listitem", "emphasis", "bold", "simplesect", "sp", "ulink"):
            return self.block(xml, here) + tail
        return escaped(text) + tail

    def page(self, header):
        intro = head_comment((ROOT / f"include/tessera/{header}.h").read_text())
        lines = [f"# tessera/{header}.h", "", intro, "", f"[The header itself]({relative(header, '')}../files/include/tessera/{header}.h.md)", ""]
        for item in self.items.get(header, []):
            lines += [f"## {escaped(item.title())} {{ #{anchor(item.name)} }}", "", "```cpp", *item.code, "```", "", self.prose(item.xml, header), ""]
            fields = [m for m in item.members if m.get("kind") == "variable"]
            if fields and not any(self.prose(m, header) for m in fields):
                lines += ["```cpp", *(declaration(m) for m in fields), "```", ""]
            elif fields:
                lines += ["| field | what |", "|---|---|"]
                lines += [f"| {field(m)} | {cell(self.prose(m, header))} |" for m in fields] + [""]
            code = []
            for member in item.members:
                if member.get("kind") == "variable" or "=delete" in (member.findtext("argsstring") or ""):
                    continue
                prose = self.prose(member, header)
                if prose and code:
                    lines += ["```cpp", *code, "```", "", text, ""]
                    code = []
                if prose or not code:
                    text = prose
                code.append(declaration(member))
            if code:
                lines += ["```cpp", *code, "```", "", text, ""]
        return "\n".join(lines)

    def headers(self):
        found = [str(p.relative_to(ROOT / "include/tessera"))[:-2] for p in sorted((ROOT / "include/tessera").rglob("*.h"))]
        return [h for h in ORDER if h in found] + [h for h in found if h not in ORDER]

    def index(self):
        lines = ["# The C++ API", "", "Each page is a public header, in its own order. `#include <tessera/tessera.h>` brings most of them.", "",
                 "| header | what |", "|---|---|"]
        for header in self.headers():
            first = head_comment((ROOT / f"include/tessera/{header}.h").read_text()).split("\n\n")[0].replace("\n", " ")
            lines.append(f"| [{header}.h]({header}.md) | {first} |")
        return "\n".join(lines) + "\n"


def anchor(name):
    return re.sub(r"[^\w]+", "-", name.replace("operator", "operator ")).strip("-").lower() or "operator"


def relative(here, header):
    return "../" * here.count("/") + (f"{header}.md" if header else "")


def field(member):
    """Name, type and default of a field, for a table."""
    kind, value = "".join(member.find("type").itertext()), initializer(member)
    kind = re.sub(r"\btessera::", "", kind).replace("< ", "<").replace(" >", ">")
    value = re.sub(r"\s+", " ", value) if len(value) < 40 else "= ..."
    return f"`{member.findtext('name')}`<br><small>{escaped(kind)} {'' if value in ('= {}', '') else escaped(value)}</small>"


def initializer(member):
    return "".join(member.find("initializer").itertext()) if member.find("initializer") is not None else ""


def cell(text):
    return re.sub(r"\s*\n\s*", " ", text)


def declaration(member):
    kind, name = member.get("kind"), member.findtext("name")
    kind_type = "".join(member.find("type").itertext()) if member.find("type") is not None else ""
    start = "static " if member.get("static") == "yes" else ""
    start += "explicit " if member.get("explicit") == "yes" else ""
    if kind == "enum":
        values = [v.findtext("name") + (f" {v.findtext('initializer')}" if v.findtext("initializer") else "") for v in member.findall("enumvalue")]
        notes = ["".join(v.find("detaileddescription").itertext()).strip() or "".join(v.find("briefdescription").itertext()).strip()
                 for v in member.findall("enumvalue")]
        return f"enum class {name} {{\n" + "\n".join(f"  {v}," + (f"  // {n}" if n else "") for v, n in zip(values, notes)) + "\n};"
    if kind == "typedef":
        return f"using {name} = {kind_type};"
    parameters = ", ".join("".join(p.find("type").itertext()) + (" " + p.findtext("declname") if p.findtext("declname") else "")
                           for p in member.findall("templateparamlist/param"))
    if parameters:
        start = f"template <{parameters}>\n" + start
    arguments = member.findtext("argsstring") or ""
    value = initializer(member)
    text = f"{start}{kind_type} {name}{arguments}".replace("  ", " ") + (f" {value}" if kind == "variable" and value else "")
    text = re.sub(r"\s+([&*])", r"\1", re.sub(r"\btessera::", "", text)).replace("< ", "<").replace(" >", ">").strip()
    text = re.sub(r"(?<!operator)([&*])(?=\w)", r"\1 ", text)
    text = re.sub(r"(?<=[\w\])])=(?=[\w{\"-])", " = ", text) if "operator" not in text else text
    return wrapped(text + ";")


def wrapped(text, width=110):
    """A long declaration with its arguments one under the other."""
    if len(text) <= width or "(" not in text:
        return text
    head, rest = text.split("(", 1)
    lines, depth, word = [], 0, ""
    for c in rest:
        depth += c in "(<{[" 
        depth -= c in ")>}]"
        word += c
        if c == "," and depth == 0:
            lines.append(word.strip())
            word = ""
    return head + "(\n    " + "\n    ".join([*lines, word.strip()])


def head_comment(text):
    """The comment that opens a header: prose, and code where it is indented."""
    lines = []
    for line in text.split("\n"):
        if not line.startswith("//"):
            break
        body = line[2:]
        lines.append("    " + body.strip() if body.startswith("   ") else escaped(body.strip()).replace("\\`", "`"))
    result = []
    for line in lines:
        if line.startswith("    ") and result and result[-1] and not result[-1].startswith("    "):
            result.append("")
        if not line.startswith("    ") and result and result[-1].startswith("    ") and line:
            result.append("")
        result.append(line)
    return "\n".join(result)

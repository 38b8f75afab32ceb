"""What MkDocs is told about the manual (hooks of mkdocs.yml).

The navigation is docs/index.md: its headings, and below each the pages that it links, then what else lies in their folder.
A link to a file of the repository that is no page of the manual leads to a page with that file, made here.
"""
import os
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import docs_api

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)(`{3,})(.*)$")
SHOWN = {".cpp": "cpp", ".h": "cpp", ".inc": "cpp", ".py": "python", ".txt": "cmake", ".json": "json", ".toml": "toml", ".csv": "text"}
made = []     # the API, when it has been read
sources = {}  # path in the repository -> path of its page


def title_of(path):
    match = re.search(r"^# (.+)$", path.read_text(), re.M)
    return match.group(1) if match else path.stem


def on_config(config):
    nav, seen = [{"Start": "index.md"}], {"index.md", "../README.md"}
    for part in re.split(r"^## ", (DOCS / "index.md").read_text(), flags=re.M)[1:]:
        pages, folders = [], []
        for _, target in LINK.findall(part):
            path = posixpath.normpath(target.split("#")[0])
            if not path.endswith(".md") or not (DOCS / path).exists() or path in seen:
                continue
            seen.add(path)
            if path.startswith("../"):
                pages.append(source_page(path[3:]))
            else:
                pages.append(path)
                folders.append(posixpath.dirname(path))
        for folder in dict.fromkeys(folders):
            if folder:
                more = sorted(str(p.relative_to(DOCS)) for p in (DOCS / folder).glob("*.md"))
                pages += [p for p in more if p not in seen]
                seen.update(more)
        if pages:
            nav.append({part.split("\n")[0]: pages})
    config["nav"] = [*nav, {"C++ API": ["api/index.md", *(f"api/{h}.md" for h in api().headers())]}]
    return config


def api():
    if not made:
        made.append(docs_api.Api())
    return made[0]


def source_page(path):
    """The page of a file of the repository; None for what has none."""
    target = ROOT / path
    if not target.is_file() or target.suffix in (".svg", ".png") or target.stat().st_size > 400_000:
        return None
    return sources.setdefault(path, f"files/{path}.md" if not path.endswith(".md") else f"files/{path}")


def rewrite(text, here, page):
    """`text` of the repository's file `here` on the site's page `page`: links, and the first lines of code blocks."""
    result, prose, fence = [], [], None

    def end_of_prose():
        result.append(LINK.sub(lambda m: f"{m.group(1)}({link(m.group(2), here, page)})", "\n".join(prose)))
        prose.clear()

    for line in text.split("\n"):
        mark = FENCE.match(line)
        if mark and fence is None:
            end_of_prose()
            fence = mark.group(2)
            words = mark.group(3).split()
            title = re.search(r'title="[^"]*"', line)
            result.append(mark.group(1) + fence + (words[0] if words else "") + (f" {title.group(0)}" if title else ""))
        elif fence is None:
            prose.append(line)
        else:
            if line.strip() == fence:
                fence = None
            result.append(line)
    end_of_prose()
    return "\n".join(result)


def link(target, here, page):
    path, _, anchor = target.partition("#")
    if not path or ":" in path:
        return target
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    if path.startswith("docs/"):
        to = path[len("docs/"):]
        if not (ROOT / path).exists():
            return target  # MkDocs says so
    else:
        if not (ROOT / path).exists():
            raise SystemExit(f"{here}: the link to '{target}' leads nowhere")
        to = source_page(path)
        if to is None:
            to = source_page(f"{path}/CMakeLists.txt")  # of a folder
        if to is None:
            raise SystemExit(f"{here}: '{target}' cannot be shown; link a file of text")
    return posixpath.relpath(to, posixpath.dirname(page) or ".") + (f"#{anchor}" if anchor else "")


def on_files(files, config):
    for page in list(files.documentation_pages()):
        if (DOCS / page.src_uri).exists():
            rewrite((DOCS / page.src_uri).read_text(), f"docs/{page.src_uri}", page.src_uri)
    files.append(File.generated(config, "api/index.md", content=api().index()))
    for header in api().headers():
        source_page(f"include/tessera/{header}.h")
        files.append(File.generated(config, f"api/{header}.md", content=api().page(header)))
    done = set()
    while set(sources) - done:
        for path in sorted(set(sources) - done):
            done.add(path)
            text = (ROOT / path).read_text()
            if path.endswith(".md"):
                content = rewrite(text, path, sources[path])
            else:
                language = SHOWN.get(pathlib.Path(path).suffix, "python" if text.startswith("#!/usr/bin/env python") else "bash")
                content = f"# {path}\n\n~~~~~{language}\n{text}\n~~~~~\n"
            files.append(File.generated(config, sources[path], content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    if (DOCS / page.file.src_uri).exists():
        return rewrite(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
    return markdown

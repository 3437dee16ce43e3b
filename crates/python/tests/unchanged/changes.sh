# Changes files and reads them again: `changes.sh WAY DIRECTORY`. The working directory is for other files.

set -e
other=$PWD
cd "$2"
cat a/* b/* | md5sum

case $1 in
rsync)
    cp -r a "$other/a"
    sed -i s/line/LINE/ "$other"/a/[0-3]
    rsync -a "$other/a/" a
    sed -i s/LINE/Line/ "$other"/a/[2-4]
    rsync -a --inplace --delete --exclude 5 "$other/a/" b
    ;;
edit)
    sed -i s/line/LINE/ a/[0-3]
    perl -i -pe 's/line/Line/' b/[0-3]
    sort -r -o b/4 b/4
    sed s/line/LINE/ a/5 > "$other/new"
    diff -u a/5 "$other/new" > "$other/patch" || true
    patch -s a/5 "$other/patch"
    ;;
tar)
    tar cf "$other/archive" a b
    echo other | tee a/* b/[0-3] > /dev/null
    cat a/1
    tar xf "$other/archive" a
    tar xf "$other/archive" --overwrite b
    split -b 99 b/0 a/
    ;;
compress)
    gzip -n a/*
    gunzip a/1.gz
    xz b/1
    cat b/1 || true
    xz -d b/1.xz
    ;;
git)
    git init -q
    git config user.name A
    git config user.email a@example.org
    git add a
    git commit -qm 1
    echo more >> a/1
    git commit -qam 2
    tail -1 a/1
    git checkout -q HEAD~1
    tail -1 a/1
    rm a/2
    git reset -q --hard
    git gc -q
    git status --short
    git fsck
    rm -r .git
    ;;
node)
    node -e '
        const fs = require("fs");
        fs.writeFileSync("a/0", "new");
        fs.renameSync("a/1", "a/2");
        fs.appendFileSync("b/0", "more");
        fs.truncateSync("b/1", 3);
        fs.copyFileSync("b/2", "b/3");
        fs.rmSync("b/4");
        fs.linkSync("b/5", "b/link");
        fs.appendFileSync("b/link", "more");
        fs.renameSync("a", "c");
        fs.cpSync("b", "a", { recursive: true });
        for (const path of ["b/0", "b/1", "b/5", "c/2", "a/3"]) console.log(path, fs.readFileSync(path).length);
    '
    ;;
python)
    python3 -c '
import mmap, os, pathlib, shutil
os.replace("a/0", "a/1")
os.truncate("a/2", 4)
with open("a/3", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    mapped[:4] = b"NEW "
shutil.move("a/4", "b/4")
shutil.copy2("b/0", "b/1")
directory = os.open("b", os.O_RDONLY)
os.rename("2", "3", src_dir_fd=directory, dst_dir_fd=directory)
os.unlink("5", dir_fd=directory)
os.symlink("../b/0", "a/link")
pathlib.Path("a/link").write_text("through a link")
for path in ["a/1", "a/2", "a/3", "b/0", "b/1", "b/3", "b/4"]:
    print(path, pathlib.Path(path).read_text()[:20])
'
    ;;
chroot)
    perl -e '
        chroot(".") or die;
        open(my $file, ">", "/a/1") or die;
        print $file "new";
        close($file);
        rename("/a/2", "/a/3");
    '
    ;;
metadata)
    chmod 600 a/1
    touch -d @5 a/2
    stat -L -c '%a %Y' - < a/1
    stat -L -c '%a %Y' - < a/2
    ;;
esac

find . -type f | sort | xargs md5sum
